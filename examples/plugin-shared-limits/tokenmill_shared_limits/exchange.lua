-- A server exchanges leases with the bucket of one API key.
--
-- KEYS[1]: a hash with the bucket, and a record of each server that has leased from it lately.
-- ARGV[1]: JSON with what the server holds, and with its demands; see Account.message. All amounts are triples:
-- requests, tokens, concurrent calls. The amounts are absolute, so a message that is sent twice changes nothing.
-- Returns a text with 1 or 0 for each demand, and the balances.

local SMALL = 1e-6 -- rounding errors of a balance

local message = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function numbers(text)
    local found = {}
    for word in string.gmatch(text, '%S+') do
        found[#found + 1] = tonumber(word)
    end
    return found
end

local function text(values)
    local found = {}
    for i, value in ipairs(values) do
        found[i] = string.format('%.17g', value)
    end
    return table.concat(found, ' ')
end

local stored, flat = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
    stored[flat[i]] = flat[i + 1]
end

-- The bucket. A limit of 0 is no limit. Concurrent calls are not refilled: they come back.
local capacity, per_minute = message.capacity, message.per_minute
local balance = stored.balance and numbers(stored.balance) or { unpack(capacity) }
local slots = tonumber(stored.slots or capacity[3])
local elapsed = math.max(0, now - tonumber(stored.at or now))
if capacity[3] > 0 then
    balance[3] = balance[3] + capacity[3] - slots -- the limit was changed
    slots = capacity[3]
end

local function add(i, amount)
    if capacity[i] > 0 then
        balance[i] = math.min(capacity[i], balance[i] + amount)
    end
end

for i = 1, 3 do
    add(i, elapsed * per_minute[i] / 60000)
end

-- Leases of servers that are lost come back.
local own = '@' .. message.record
for field, value in pairs(stored) do
    if string.sub(field, 1, 1) == '@' and field ~= own then
        local record = numbers(value)
        if record[1] < now then
            for i = 1, 3 do
                add(i, record[1 + i])
            end
            redis.call('HDEL', KEYS[1], field)
        end
    end
end

-- What this server returned since its record was written. Without a record, its leases have come back meanwhile.
local record = stored[own] and numbers(stored[own])
local held, taken = message.held, message.taken
for i = 1, 3 do
    if record then
        add(i, record[4 + i] - taken[i])
    else
        add(i, message.known_taken[i] - taken[i] - message.known_held[i])
    end
end

-- A price above the capacity needs a full bucket, and leaves a debt. Only a part of it comes back if the server is lost:
-- the rest is spent at once.
local granted, has_new = {}, false
for d, demand in ipairs(message.demands) do
    local price, returnable = demand[1], demand[2]
    local fits = true
    for i = 1, 3 do
        local needed = math.min(price[i], capacity[i])
        fits = fits and (needed == 0 or balance[i] + SMALL >= needed)
    end
    granted[d] = fits and '1' or '0'
    has_new = has_new or fits
    for i = 1, fits and 3 or 0 do
        add(i, -price[i])
        held[i], taken[i] = held[i] + returnable[i], taken[i] + price[i]
    end
end

if record or has_new or held[1] > 0 or held[2] > 0 or held[3] > 0 then
    local expires = now + message.lease_ms
    local line = { expires, held[1], held[2], held[3], taken[1], taken[2], taken[3] }
    redis.call('HSET', KEYS[1], own, text(line))
end
redis.call('HSET', KEYS[1], 'balance', text(balance), 'at', now, 'slots', slots)

-- A full bucket without records is the same as none.
local lives = message.lease_ms
for i = 1, 2 do
    if per_minute[i] > 0 then
        lives = math.max(lives, (capacity[i] - balance[i]) / per_minute[i] * 60000)
    end
end
redis.call('PEXPIRE', KEYS[1], math.ceil(lives) + 1000)
return { table.concat(granted), text(balance) }
