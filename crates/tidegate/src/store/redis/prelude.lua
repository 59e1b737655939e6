-- prelude, version 3: what every algorithm's script may call; they come after it, and decide.lua after them.
--
-- What runs for every hit is written for Redis's Lua, which takes forty instructions for each of its own, and hundreds for a call: a
-- state is in the local variables of its algorithm, one at a time; small things are written out where they are needed; and
-- what is seldom needed is not even made (`rarely`), nor, where that is much, what the usual hits do not need (`more`: makes `evaluate` and
-- all that comes after it).

-- `values` are those of a table, in order; `unpack` takes apart what is packed.
local values = unpack
local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub

-- The time in epoch microseconds. Read once: all that is asked together is asked at one time.
local now = tonumber(ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- An algorithm has the functions of its .rs, which go on from the state that was loaded last:
--   load(key, plan, cost) the plan it was written under, as text; nothing if there is no state. It may charge the cost, if it is
--                         given one, at once: where the state is of this plan, and all that is to be done is to add to it. Then it
--                         says used and reset_after too
--   evaluate(plan, cost)  used, wait (-1 allowed, -2 never), reset_after; the others come after it
--   commit(plan, cost)    the time and the cost charged, reset_after
--   refund, inspect
--   convert(old, new, since)  whether nothing is left of it
--   stamp(plan)           a time that it was not written before; and when to convert it as of, if not then
--   persist(plan)         writes it down as it is, after a conversion
--   reset_after(plan)     only where evaluate and commit do not say it
-- `needs`: the numbers of a plan that are written beside a state; `terms`: those in which its numbers are.
local algorithms = {}

local ALLOWED, NEVER = -1, -2

-- Entries that an inspection shows, the latest ones.
local INSPECTED = 1000

-- A cost against what is left; nothing where a wait would cure the denial. The twin of Evaluation::new.
local function judge(capacity, used, cost)
  if cost <= capacity - used or cost == 0 then
    return ALLOWED
  elseif cost > capacity then
    return NEVER
  end
end

-- The TTL in milliseconds of what is read for so many microseconds: rounded up, with a second to spare.
local SHORTEST = tonumber(ARGV[2])
local function ttl(span)
  local milliseconds = (span - span % 1000) / 1000 + 1001
  return text(milliseconds < SHORTEST and SHORTEST or milliseconds)
end
