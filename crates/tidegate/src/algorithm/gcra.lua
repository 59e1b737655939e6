-- gcra, version 4: the twin of gcra.rs. A string: the theoretical arrival time (7 bytes), the bits of the debt (1), how long the
-- key is kept (7), and the plan.

local function take_gcra(key, plan, cost, looks)
  local value = call('GET', key)
  local arrival, bits, kept, under
  if value then
    arrival, bits, kept, under = unpack('>I7BI7c35', value)
    if under ~= plan.text then
      return
    end
  end
  local interval, tolerance = plan.interval, plan.tolerance
  local owed = cost * interval
  if value and arrival > now then
    owed = owed + (arrival - now)
  end
  if owed > tolerance then
    return
  elseif looks then
    return true
  end
  if value and now + owed <= kept then
    call('SETRANGE', key, '0', pack('>I7B', now + owed, 0))
  else
    kept = now + owed + tolerance
    call('SET', key, pack('>I7BI7c0', now + owed, 0, kept, plan.text), 'PX', ttl(kept - now))
  end
  local used = owed + interval - 1
  return (used - used % interval) / interval, owed
end

algorithms['gcra'] = { needs = { 'interval', 'capacity', 'window' }, take = take_gcra }

-- Otherwise

local gcra = algorithms['gcra']

-- The longest time to refill a bucket: 100 years.
local MAX_REFILL = 100 * 366 * 86400000000

local key, written, time, bits, kept, backlog

-- How long until nothing is owed. What was written more than a window ahead of `at` was written under a wrong clock.
local function backlog_at(plan, at)
  local owed = time - at
  if owed <= 0 or owed >= plan.tolerance + plan.window + (bits == 0 and 1 or 2 ^ bits) then
    return 0
  end
  return owed
end

local function set(plan, at, owed)
  time, bits, backlog = at + owed, 0, owed
  if owed > plan.tolerance then
    local _
    _, bits = math.frexp(owed - plan.tolerance)
  end
end

-- A key is kept for longer than it need be by what a full burst takes to pay back: so that its TTL need not be set each time.
local function save(plan, owed)
  set(plan, now, owed)
  if time <= kept and written == plan.text then
    call('SETRANGE', key, '0', pack('>I7B', time, bits))
  else
    kept, written = time + plan.tolerance, plan.text
    call('SET', key, pack('>I7BI7', time, bits, kept) .. written, 'PX', ttl(kept - now))
  end
end

function gcra.load(of)
  local value = call('GET', of)
  key = of
  if value then
    time, bits, kept, written = unpack('>I7BI7c35', value)
  else
    written, time, bits, kept = nil, 0, 0, 0
  end
  return written
end

function gcra.evaluate(plan, cost)
  local interval, capacity, owed = plan.interval, plan.capacity, 0
  if time > now then
    owed = backlog_at(plan, now)
  end
  backlog = owed
  local used = owed + interval - 1
  used = (used - used % interval) / interval
  if cost <= capacity - used then
    return used, ALLOWED, owed
  end
  return used, judge(capacity, used, cost) or owed - (capacity - cost) * interval, owed
end

function gcra.commit(plan, cost)
  local owed = backlog + cost * plan.interval
  if owed > MAX_REFILL then
    -- A debt is kept in full, up to what the longest refill can pay.
    local most = math.max(MAX_REFILL, backlog)
    if owed > most then
      owed, cost = most, math.floor((most - backlog) / plan.interval)
    end
  end
  save(plan, owed)
  return now, cost, backlog
end

function gcra.rarely()
  gcra.terms = { 'interval', 'capacity' }

  -- Gives back what would not have been paid since.
  function gcra.refund(plan, at, amount)
    local back = at <= now and math.max(amount * plan.interval - (now - at), 0) or 0
    if backlog > 0 then
      save(plan, math.max(backlog - back, 0))
    end
  end

  -- The backlog, stretched or squeezed as the interval is.
  function gcra.convert(old, new, since)
    local owed = mul_div_ceil(backlog_at(old, since), new.interval, old.interval)
    set(new, since, math.min(owed, MAX_REFILL))
  end

  -- When it was written is not known exactly.
  function gcra.stamp(plan)
    return time - plan.tolerance - 2 ^ bits, now
  end

  function gcra.persist(plan)
    kept, written = time + plan.tolerance, plan.text
    call('SET', key, pack('>I7BI7', time, bits, kept) .. written, 'PX', ttl(kept - now))
  end

  function gcra.inspect()
    return { 'arrival', time }, {}
  end
end
