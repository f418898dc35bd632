// Lets torch without CUDA enter and leave devices of type "cuda".
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>)
}  // namespace c10::impl
