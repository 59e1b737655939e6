-- What every algorithm's script may call, before the algorithms; decide.lua comes after them.

local algorithms = {}

-- A cost against what is left: used, and the wait (-1 allowed, -2 never); the twin of Evaluation::new.
local function judge(plan, used, cost, wait)
  if cost > plan.capacity then
    return used, -2
  elseif cost <= math.max(plan.capacity - used, 0) then
    return used, -1
  end
  return used, wait()
end

-- The TTL in milliseconds of a state that lasts for so many microseconds: rounded up, with a second to spare.
local function ttl(span)
  return text(math.max(math.ceil(span / 1000) + 1000, tonumber(ARGV[3])))
end
