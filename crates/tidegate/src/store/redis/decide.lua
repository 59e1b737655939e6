-- Decides one hit by several policies, all or nothing, in one atomic call: the twin of memory/mod.rs.
--
-- KEYS: one for each policy.
-- ARGV: the time in epoch microseconds or '' for the server's; the intent (check, peek, charge, refund, carry); the shortest TTL in milliseconds; then for each
-- policy: algorithm, 'enforce' or 'shadow', cost, the plan's capacity, window and interval, and since when it is in force.
-- Reply, for each policy: wait (-1 allowed, -2 never, else microseconds), used, reset_after, charged, at.

local function clock()
  if ARGV[1] ~= '' then
    return tonumber(ARGV[1])
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local now, intent = clock(), ARGV[2]
local ALLOWED, NEVER = -1, -2
local asks = {}
for i = 1, #KEYS do
  local field = function(n)
    return ARGV[3 + (i - 1) * 7 + n]
  end
  local plan = { capacity = tonumber(field(4)), window = tonumber(field(5)), interval = tonumber(field(6)) }
  local ask = { plan = plan, algorithm = algorithms[field(1)], enforced = field(2) == 'enforce', cost = tonumber(field(3)) }
  ask.state = ask.algorithm.load(KEYS[i], plan, tonumber(field(7)))
  asks[i] = ask
end

local admitted = true
for _, ask in ipairs(asks) do
  ask.used, ask.wait = ask.algorithm.evaluate(ask.state, ask.plan, now, ask.cost)
  admitted = admitted and (not ask.enforced or ask.wait == ALLOWED)
end

local reply = {}
for i, ask in ipairs(asks) do
  local charged, at = 0, 0
  local charge = intent == 'charge' or (intent == 'check' and admitted and ask.wait == ALLOWED)
  if intent == 'carry' then
    ask.algorithm.carry(ask.state, ask.plan, now)
  elseif intent == 'refund' then
    ask.algorithm.refund(ask.state, ask.plan, now, tonumber(ARGV[#ARGV]), ask.cost)
    ask.used, ask.wait = ask.algorithm.evaluate(ask.state, ask.plan, now, 0)
  elseif charge and ask.cost > 0 then
    at, charged = ask.algorithm.commit(ask.state, ask.plan, now, ask.cost)
    if intent == 'charge' then
      ask.used, ask.wait = ask.algorithm.evaluate(ask.state, ask.plan, now, 0)
    else
      ask.used = ask.used + charged
    end
  end
  reply[i] = { ask.wait, ask.used, ask.algorithm.reset_after(ask.state, ask.plan, now), charged, at }
end
return reply
