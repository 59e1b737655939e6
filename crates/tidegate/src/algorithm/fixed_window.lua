-- fixed-window, version 1: the twin of fixed_window.rs. A string: the start of the window and what it has counted (7 bytes each),
-- and the plan.

local fixed = { needs = { 'window' } }

-- `kept` is the start for which the key has its TTL.
local key, written, start, used, kept

-- Makes the window the one to judge by: the stored one while it runs, and while the clock is behind it by at most a window.
local function move(plan, at)
  local window = plan.window
  if used == 0 or at - start >= window or start - at > window then
    start, used = at - at % window, 0
  end
end

local function save(plan)
  local value = pack('>I7I7', start, used)
  if kept == start and written == plan.text then
    call('SETRANGE', key, '0', value)
  else
    call('SET', key, value .. plan.text, 'PX', ttl(start + plan.window - now))
    kept, written = start, plan.text
  end
end

function fixed.load(of)
  local value = call('GET', of)
  key = of
  if value then
    start, used = unpack('>I7I7', value)
    kept, written = start, sub(value, 15)
  else
    written, start, used, kept = nil, 0, 0, 0
  end
  return written
end

function fixed.evaluate(plan, cost)
  local window, capacity = plan.window, plan.capacity
  if used == 0 or now - start >= window or start > now then
    move(plan, now)
  end
  local lasts = start + window - now
  if cost <= capacity - used then
    return used, ALLOWED, used == 0 and 0 or lasts
  end
  return used, judge(capacity, used, cost) or lasts, used == 0 and 0 or lasts
end

function fixed.commit(plan, cost)
  if cost > MAX - used then
    cost = MAX - used
  end
  used = used + cost
  save(plan)
  return now < start and start or now, cost, start + plan.window - now
end

function fixed.rarely()
  fixed.terms = { 'window' }

  function fixed.refund(plan, at, amount)
    if at >= start and at < start + plan.window then
      used = used - math.min(amount, used)
      save(plan)
    end
  end

  -- What the running window has counted, the new one has.
  function fixed.convert(old, new, since)
    move(old, since)
    local at = math.max(since, start)
    start = at - at % new.window
    return used == 0
  end

  function fixed.stamp()
    return start
  end

  function fixed.persist(plan)
    kept = nil
    if start + plan.window > now then
      save(plan)
    end
  end

  function fixed.inspect()
    return { 'start', start, 'used', used }, {}
  end
end

algorithms['fixed-window'] = fixed
