-- gcra: the twin of gcra.rs. A string: the theoretical arrival time, then the plan it was written under.

local gcra = {}

-- How long a full burst takes to pay back.
local function tolerance(plan)
  return plan.capacity * plan.interval
end

local function backlog_of(time, plan, now)
  local backlog = math.max(time - now, 0)
  return backlog > tolerance(plan) + 2 * plan.window and 0 or backlog
end

local function owing(state, plan, now, backlog)
  state.time = now + math.min(backlog, tolerance(plan) + plan.window)
end

local function convert(state, old, new, now)
  if old.interval == new.interval and old.capacity == new.capacity then
    return
  end
  owing(state, new, now, mul_div_ceil(backlog_of(state.time, old, now), new.interval, old.interval))
end

local function save(state, plan, now)
  local value = table.concat({ text(state.time), text(plan.interval), text(plan.capacity), text(plan.window) }, ':')
  redis.call('SET', state.key, value, 'PX', ttl(state.time - now))
end

function gcra.load(key, plan, now)
  local state = { key = key, time = 0 }
  local value = redis.call('GET', key)
  if value then
    local time, interval, capacity, window = string.match(value, '^(%d+):(%d+):(%d+):(%d+)$')
    state.time = tonumber(time)
    convert(state, { interval = tonumber(interval), capacity = tonumber(capacity), window = tonumber(window) }, plan, now)
  end
  return state
end

function gcra.evaluate(state, plan, now, cost)
  local backlog = backlog_of(state.time, plan, now)
  local used = math.ceil(backlog / plan.interval)
  return judge(plan, used, cost, function()
    return backlog - (plan.capacity - cost) * plan.interval
  end)
end

function gcra.commit(state, plan, now, cost)
  local backlog = backlog_of(state.time, plan, now)
  local wanted = backlog + cost * plan.interval
  owing(state, plan, now, wanted)
  local owed = state.time - now
  save(state, plan, now)
  if owed ~= wanted then
    cost = math.floor(math.max(owed - backlog, 0) / plan.interval)
  end
  return now, cost
end

function gcra.reset_after(state, plan, now)
  return backlog_of(state.time, plan, now)
end

-- Gives back what would not have been paid since.
function gcra.refund(state, plan, now, at, amount)
  if state.time == 0 then
    return
  end
  local back = at <= now and math.max(amount * plan.interval - (now - at), 0) or 0
  owing(state, plan, now, math.max(backlog_of(state.time, plan, now) - back, 0))
  save(state, plan, now)
end

algorithms['gcra'] = gcra
