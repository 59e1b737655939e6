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

-- The longest backlog that a debt can make.
local function bound(plan)
  return tolerance(plan) + plan.window
end

-- The backlog, stretched or squeezed as the interval is.
local function convert(state, old, new, since)
  local backlog = mul_div_ceil(backlog_of(state.time, old, since), new.interval, old.interval)
  state.time = since + math.min(backlog, bound(new))
end

local function save(state, plan, now)
  local value = table.concat({ text(state.time), text(plan.interval), text(plan.capacity), text(plan.window) }, ':')
  redis.call('SET', state.key, value, 'PX', ttl(state.time - now))
end

function gcra.load(key, plan, since)
  local state = { key = key, time = 0 }
  local value = redis.call('GET', key)
  if value then
    local time, interval, capacity, window = string.match(value, '^(%d+):(%d+):(%d+):(%d+)$')
    state.time = tonumber(time)
    local old = { interval = tonumber(interval), capacity = tonumber(capacity), window = tonumber(window) }
    if old.interval ~= plan.interval or old.capacity ~= plan.capacity then
      convert(state, old, plan, since)
    end
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
  -- Where the clock has stepped back it may be longer already.
  local owed = math.min(wanted, math.max(bound(plan), backlog))
  state.time = now + owed
  save(state, plan, now)
  if owed ~= wanted then
    cost = math.floor((owed - backlog) / plan.interval)
  end
  return now, cost
end

function gcra.reset_after(state, plan, now)
  return backlog_of(state.time, plan, now)
end

-- Gives back what would not have been paid since.
function gcra.refund(state, plan, now, at, amount)
  local back = at <= now and math.max(amount * plan.interval - (now - at), 0) or 0
  back = math.min(back, backlog_of(state.time, plan, now))
  if back > 0 then
    state.time = state.time - back
    save(state, plan, now)
  end
end

algorithms['gcra'] = gcra
