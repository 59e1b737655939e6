-- main, version 2: a call: goes through the hits, those that are alike at once, and puts the reply together.

-- Plans by what they are packed as: those of the calls before. Where it is many, they are no longer those in use.
local known, many = {}, 0

local function plan_of(packed)
  local plan = known[packed]
  if not plan then
    if many == 1000 then
      known, many = {}, 0
    end
    plan = plan_at(packed, 1)
    known[packed], many = plan, many + 1
  end
  return plan
end

local function main(its_keys, its_arguments)
  keys, arguments, now = its_keys, its_arguments, tonumber(its_arguments[1])
  if now == 0 then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  now_text = text(now)
  plans, hits, numbers, reply = {}, arguments[3], { now }, nil
  for i = 4, #arguments do
    plans[i - 3] = plan_of(arguments[i])
  end
  local position, before = 1, 0
  while position <= #hits do
    local times, intent, count, number, _, cost = unpack('>I2BI2I2BI7', hits, position)
    local serve, width, bytes, what, much = take_each, 1, 10, plans[number], cost
    if intent > 0 or cost == 0 or count > 1 then
      serve, what, much = take_all, position + 5, count
      if intent > 0 or cost == 0 then
        other = other or rest()
        serve, width, bytes = other.kind_of(intent)
      end
    end
    begun = 0
    while begun < times do
      local done = begun
      local ok, failure = pcall(serve, times, before, what, much)
      if not ok then
        other = other or rest()
        other.fail(failure)
        begun = begun > done and begun or done + 1
      end
    end
    before, position = before + times * count * width, position + 5 + count * bytes
  end
  if reply or #numbers > 1000 then
    other = other or rest()
    return other.whole_reply()
  end
  return pack('>' .. string.rep('i7', #numbers), values(numbers))
end
