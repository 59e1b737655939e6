-- gcra: the twin of gcra.rs. A string: the theoretical arrival time, the bits of the debt, and the plan it was written under.

local gcra = {}

-- The longest time to refill a bucket: 100 years.
local MAX_REFILL = 100 * 366 * 86400000000

-- How long a full burst takes to pay back.
local function tolerance(plan)
  return plan.capacity * plan.interval
end

local function set(state, plan, now, backlog)
  local debt = math.max(backlog - tolerance(plan), 0)
  local _, bits = math.frexp(debt)
  state.time, state.bits = now + backlog, bits
end

-- How long until nothing is owed. What was written more than a window ahead of `now` was written under a wrong clock.
local function backlog_of(state, plan, now)
  local backlog = math.max(state.time - now, 0)
  return backlog >= tolerance(plan) + 2 ^ state.bits + plan.window and 0 or backlog
end

-- The backlog, stretched or squeezed as the interval is.
local function convert(state, old, new, since)
  local backlog = mul_div_ceil(backlog_of(state, old, since), new.interval, old.interval)
  set(state, new, since, math.min(backlog, MAX_REFILL))
end

local function save(state, plan, now)
  local fields = { state.time, state.bits, plan.interval, plan.capacity, plan.window }
  for i, field in ipairs(fields) do
    fields[i] = text(field)
  end
  redis.call('SET', state.key, table.concat(fields, ':'), 'PX', ttl(math.max(state.time - now, 0)))
end

function gcra.load(key, plan, since)
  local state = { key = key, time = 0, bits = 0 }
  local value = redis.call('GET', key)
  if value then
    local time, bits, interval, capacity, window = string.match(value, '^(%d+):(%d+):(%d+):(%d+):(%d+)$')
    state.time, state.bits = tonumber(time), tonumber(bits)
    local old = { interval = tonumber(interval), capacity = tonumber(capacity), window = tonumber(window) }
    if old.interval ~= plan.interval or old.capacity ~= plan.capacity then
      convert(state, old, plan, since)
      state.converted = true
    end
  end
  return state
end

function gcra.evaluate(state, plan, now, cost)
  local backlog = backlog_of(state, plan, now)
  local used = math.ceil(backlog / plan.interval)
  return judge(plan, used, cost, function()
    return backlog - (plan.capacity - cost) * plan.interval
  end)
end

function gcra.commit(state, plan, now, cost)
  local backlog = backlog_of(state, plan, now)
  local wanted = backlog + cost * plan.interval
  -- A debt is kept in full, up to what the longest refill can pay.
  local owed = math.min(wanted, math.max(MAX_REFILL, backlog))
  set(state, plan, now, owed)
  save(state, plan, now)
  if owed ~= wanted then
    cost = math.floor((owed - backlog) / plan.interval)
  end
  return now, cost
end

function gcra.reset_after(state, plan, now)
  return backlog_of(state, plan, now)
end

-- Writes down that the state is under this plan now.
function gcra.carry(state, plan, now)
  if state.converted then
    save(state, plan, now)
  end
end

-- Gives back what would not have been paid since.
function gcra.refund(state, plan, now, at, amount)
  local back = at <= now and math.max(amount * plan.interval - (now - at), 0) or 0
  local backlog = backlog_of(state, plan, now)
  if backlog > 0 then
    set(state, plan, now, math.max(backlog - back, 0))
    save(state, plan, now)
  end
end

algorithms['gcra'] = gcra
