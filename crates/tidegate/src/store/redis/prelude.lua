-- prelude, version 6: what every algorithm's script may call; they come after it, decide.lua after them, and main.lua last. All of it is
-- made once where the server has it as a function, and else for each call.
--
-- Each part of the script is what the usual hits need, and, after the line "Otherwise", what all others do. The former comes first in the
-- script and is made with it. The latter is the body of one function, `rest`, and so costs nothing until it is called for: Redis's Lua
-- takes five hundred instructions to make a function, as many again for each variable that a function has of those around it, and forty
-- for each of its own. So what is usual is written with few of either, and small things are written out where they are needed.

-- `values` are those of a table, in order; `unpack` takes apart what is packed.
local values = unpack
local call, pack, unpack, sub = redis.call, struct.pack, struct.unpack, string.sub

-- Below it integers are exact.
local WHOLE = 2 ^ 53

-- Of the call: its keys and arguments, and the time in epoch microseconds, as a number and as text. All that is asked together is asked
-- at one time.
local keys, arguments, now, now_text

-- A number for redis.call, which would lose the last digits of one that it is handed as it is. '%d' is four times as fast as '%.0f'; on a
-- machine of 32 bits it is wrong. Small ones, which are places in a string, are kept.
local integer
local texts = {}
local function text(number)
  local made = texts[number]
  if not made then
    integer = integer or (string.format('%d', 4503599627370496) == '4503599627370496' and '%d' or '%.0f')
    made = string.format(integer, number)
    if number >= 0 and number < 4096 then
      texts[number] = made
    end
  end
  return made
end

-- The TTL in milliseconds of what is read for so many microseconds: rounded up, with a second to spare, and that also where it is
-- over already.
local function ttl(span)
  span = span > 0 and span or 0
  local milliseconds, shortest = (span - span % 1000) / 1000 + 1001, tonumber(arguments[2])
  return text(milliseconds < shortest and shortest or milliseconds)
end

-- A TTL that outlasts all that is written in the same stretch of time, a window long: so it need not be set each time.
local function keep(key, plan, time)
  local window = plan.window
  call('PEXPIRE', key, ttl(time - time % window + 2 * window - now))
end

-- Makes what is not usual.
local rest

-- An algorithm has, from the start:
--   needs                 the numbers of a plan that are written beside a state
--   take(key, plan, cost, looks)  charges a hit at once, where all that is to be done is to begin a state or to add to one of this plan:
--                         used and reset_after. Otherwise it says and changes nothing. If it only looks, it says true where it would
-- and the functions of its .rs, which go on from the state that was loaded last:
--   load(key)             the plan it was written under, as text; nothing if there is no state
--   evaluate(plan, cost)  used, wait (-1 allowed, -2 never), reset_after; the others come after it
--   commit(plan, cost)    the time and the cost charged, reset_after
--   refund, inspect
--   convert(old, new, since)  whether nothing is left of it
--   stamp(plan)           a time that it was not written before; and when to convert it as of, if not then
--   persist(plan)         writes it down as it is, after a conversion
--   reset_after(plan)     only where evaluate and commit do not say it
--   terms                 the numbers of a plan in which those of a state are
local algorithms = {}

-- Otherwise

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
