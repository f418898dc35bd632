"""Bugs of the CPU kernels, which the self-test of every library finds."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tokenmill.backends.cpu.native import build
from tokenmill.backends.machine.compiling import run_compiler, run_compilers
from tokenmill.core.interfaces import no_progress

INSTRUCTION_SET = "portable"
"""It compiles fastest, and shares its loops with the other sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBug:
    """Text of a file of csrc that is replaced once."""

    file: str
    old: str
    new: str
    caught_as: str
    """The beginning of the self-test's line: what it says is wrong."""

    def changed(self) -> str:
        """The text of its file with the bug. The text that is replaced must be there once."""
        source = (build.SOURCES / self.file).read_text(encoding="utf-8")
        assert source.count(self.old) == 1, f"{self.file} has {source.count(self.old)} x {self.old}"
        return source.replace(self.old, self.new)


class Workshop:
    """Compiles the kernels once, and then for each bug what includes its file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources = folder / "csrc"
        shutil.copytree(build.SOURCES, self._sources)
        self._product = build.library_for(INSTRUCTION_SET)
        self._toolchain = build.Toolchain(
            compiler=build.find_compiler(), machine=platform.machine()
        )
        self._objects = {
            source.relative_to(build.SOURCES): folder / f"{source.parent.name}_{source.stem}.o"
            for source in build._sources_of(self._product)
        }
        self._compile(self._objects)

    def findings(self, bug: KernelBug | None) -> str:
        """What the self-test prints about the library with a bug; "" if it passes."""
        if bug is None:
            return self._run_self_test()
        path = self._sources / bug.file
        path.write_text(bug.changed(), encoding="utf-8")
        names = [name for name, made in self._objects.items() if bug.file in _included(made)]
        assert names, f"no source includes {bug.file}"
        clean = {self._objects[name]: self._objects[name].read_bytes() for name in names}
        try:
            self._compile({name: self._objects[name] for name in names})
            return self._run_self_test()
        finally:
            shutil.copyfile(build.SOURCES / bug.file, path)
            for made, content in clean.items():
                made.write_bytes(content)

    def _compile(self, objects: dict[Path, Path]) -> None:
        commands = []
        for name, made in objects.items():
            flags = build._flags_for(self._product, self._toolchain, self._sources / name)
            flags[-1] = f"-I{self._sources}"
            source = str(self._sources / name)
            command = [self._toolchain.compiler, *flags, "-MMD", "-c", source, "-o", str(made)]
            commands.append(command)
        run_compilers(commands, self._product.compilers, lambda done: None)

    def _run_self_test(self) -> str:
        library = self._folder / self._product.name
        objects = map(str, self._objects.values())
        command = [self._toolchain.compiler, *build._link_flags(self._product)]
        run_compiler([*command, "-o", str(library), *objects], self._product.compilers)
        program = build.build_self_test(no_progress)
        done = subprocess.run([program, library], capture_output=True, text=True, timeout=300)
        return done.stdout or f"status {done.returncode}" * (done.returncode != 0)


def _included(made: Path) -> str:
    """The compiler's list of the files that an object was made of."""
    return made.with_suffix(".d").read_text(encoding="utf-8")


def bug(file: str, old: str, new: str, caught_as: str) -> KernelBug:
    return KernelBug(file=file, old=old, new=new, caught_as=caught_as)


BUGS = {
    "the block table moves on one group too late": bug(
        "attention/micro.h", "if (slot == block_size) {", "if (slot > block_size) {", "attention"
    ),
    "an odd number of keys loses the last one": bug(
        "attention/micro.h", "if (here % Elements::kPack != 0) {", "if (false) {", "attention"
    ),
    "scores are not scaled": bug(
        "attention/tiles.h",
        "(is_capped_ ? call.spec->logits_soft_cap : call.spec->scale) * kLog2E)",
        "(is_capped_ ? call.spec->logits_soft_cap : 1.0f) * kLog2E)",
        "attention",
    ),
    "a query sees the next key": bug(
        "attention/tiles.h",
        "std::min<int64_t>(keys, last_seen(row) + 1 - begin)",
        "std::min<int64_t>(keys, last_seen(row) + 2 - begin)",
        "decoder layers",
    ),
    "a window is one key longer": bug(
        "attention/tiles.h",
        "position_of(row) + 1 - window",
        "position_of(row) - window",
        "attention",
    ),
    "chunks are merged without their maxima": bug(
        "attention/tiles.h",
        "const float its = std::exp2(more.maximum[row] - maximum);",
        "const float its = mine;",
        "attention",
    ),
    "a raised maximum leaves the sums as they are": bug(
        "attention/tiles.h",
        "store_lanes(sums_ + row * 16, load_lanes(sums_ + row * 16) * factor);",
        "",
        "attention",
    ),
    "sinks are not in base 2": bug(
        "attention/attention.cpp",
        "std::exp2(call_.sinks[head] * kLog2E - maximum)",
        "std::exp2(call_.sinks[head] - maximum)",
        "attention",
    ),
    "queries of several tokens are written to other heads": bug(
        "attention/attention.cpp",
        "int64_t{tile.kv_head} * group_size_ + row % group_size_;",
        "int64_t{tile.kv_head} * group_size_ + row / rows_of(tile);",
        "attention",
    ),
    "a window begins within a group of keys": bug(
        "attention/plan.cpp",
        "std::max<int64_t>(0, first_seen) / group * group;",
        "std::max<int64_t>(0, first_seen);",
        "attention",
    ),
    "odd bfloat16 weights are the even ones": bug(
        "linear/tiles/float_tiles.h",
        "(Floats)(words & 0xffff0000u)",
        "(Floats)(words << 16)",
        "product",
    ),
    "a long row keeps the last piece only": bug(
        "linear/linear.cpp",
        "tile_.add_to_sums = piece > 0;",
        "tile_.add_to_sums = false;",
        "product",
    ),
    "the residual is lost": bug(
        "linear/tiles/finish.h",
        "if (call.add_to_out) value += load_as_floats(out + column);",
        "",
        "product",
    ),
    "gelu for silu": bug(
        "linear/tiles/finish.h", "? silu(x) : gelu(x);", "? gelu(x) : silu(x);", "product"
    ),
    "outliers are rounded once": bug(
        "linear/inputs.cpp",
        "limit * total;\n    if (out[i].has_rest)",
        "limit * total;\n    if (false)",
        "product",
    ),
    "the zero of the second half is that of the first": bug(
        "linear/inputs.cpp",
        "out->offsets[1] = -zero * high;",
        "out->offsets[1] = -zero * low;",
        "product",
    ),
    "minima of Q4_K have bits of other ones": bug(
        "formats/sources.cpp", "| (from[i] >> 6) << 4;", "| (from[i - 4] >> 6) << 4;", "product"
    ),
    "a norm without epsilon": bug(
        "elementwise/norms.h", "std::sqrt(mean + call.eps)", "std::sqrt(mean)", "decoder"
    ),
    "the rotation has the wrong sign": bug(
        "elementwise/rotation.h",
        "second * c + first * s",
        "second * c - first * s",
        "attention",
    ),
    "a draw comes from the first tokens": bug(
        "sampling/weighted_row.cpp", "    left -= numbers_.sums[block];\n", "", "drawing tokens"
    ),
    "top_k keeps one token less": bug(
        "sampling/selection.h",
        "if (above >= wanted) {",
        "if (above + 1 >= wanted) {",
        "drawing tokens",
    ),
    "shares are normalized when they should not be": bug(
        "decoder/experts.cpp",
        "if (!spec.normalizes_shares) {",
        "if (spec.normalizes_shares) {",
        "experts",
    ),
}
