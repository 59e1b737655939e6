-- sliding-counter, version 3: the twin of sliding_counter.rs. A hash: `buckets`, which are the start of the current window and
-- what it and the one before it have counted (7 bytes each), and the plan.

-- Weights are in steps of 2^-20, rounded up, so that Lua and Rust agree to the last unit.
local STEPS = 2 ^ 20

local function take_counter(key, plan, cost, looks)
  local value, window = call('HGET', key, 'buckets'), plan.window
  local begun, start, current, previous, under = now - now % window, 0, 0, 0, nil
  if value then
    start, current, previous, under = unpack('>I7I7I7c35', value)
    if start > now or under ~= plan.text then
      return
    end
  end
  local is_new = now - start >= window or current + previous == 0
  if is_new then
    previous = start + window == begun and current or 0
    start, current = begun, 0
  end
  local used = current
  if previous > 0 then
    local parts = (start + window - now) * STEPS
    if parts >= WHOLE or previous >= WHOLE / STEPS then
      return
    end
    local rest = parts % window
    local counted = previous * ((parts - rest) / window + (rest > 0 and 1 or 0))
    rest = counted % STEPS
    used = current + (counted - rest) / STEPS + (rest > 0 and 1 or 0)
  end
  if cost > plan.capacity - used then
    return
  elseif looks then
    return true
  end
  local lasts = start + 2 * window - now
  call('HSET', key, 'buckets', pack('>I7I7I7c0', start, current + cost, previous, plan.text))
  if is_new then
    call('PEXPIRE', key, ttl(lasts))
  end
  return used + cost, lasts
end

algorithms['sliding-counter'] = { needs = { 'window' }, take = take_counter }

-- Otherwise

local counter = algorithms['sliding-counter']

-- `kept` is the start for which the key has its TTL.
local key, written, start, current, previous, kept

-- Makes the buckets what they are at that time.
local function roll(plan, at)
  local window = plan.window
  if at - start >= window or start - at > window or (current == 0 and previous == 0) then
    local begun = at - at % window
    previous = start + window == begun and current or 0
    start, current = begun, 0
  end
end

-- The estimate at that time, for buckets that are rolled to it.
local function used_at(plan, at)
  if previous == 0 then
    return current
  end
  local overlap = start + plan.window - (at < start and start or at)
  local weight = mul_div_ceil(overlap, STEPS, plan.window)
  return math.min(current + mul_div_ceil(previous, weight, STEPS), MAX)
end

-- The first time at which no more than `room` of a bucket of `cost`, which weighs less and less until `over`, counts.
local function faded(plan, over, cost, room)
  local weight = mul_div(room, STEPS, cost)
  local overlap = mul_div(weight, plan.window, STEPS)
  return over - overlap
end

-- A bucket that has a TTL has one for two windows from its start.
local function save(plan)
  call('HSET', key, 'buckets', pack('>I7I7I7', start, current, previous) .. plan.text)
  if kept ~= start or written ~= plan.text then
    call('PEXPIRE', key, ttl(start + 2 * plan.window - now))
    kept, written = start, plan.text
  end
end

local function reset_after(plan)
  local over = start + plan.window - now
  if current > 0 then
    return over + plan.window
  end
  return previous > 0 and over or 0
end

function counter.load(of)
  local value = call('HGET', of, 'buckets')
  key = of
  if value then
    start, current, previous, written = unpack('>I7I7I7c35', value)
    kept = start
  else
    written, start, current, previous, kept = nil, 0, 0, 0, 0
  end
  return written
end

function counter.evaluate(plan, cost)
  if now - start >= plan.window or start > now or (current == 0 and previous == 0) then
    roll(plan, now)
  end
  local used = previous == 0 and current or used_at(plan, now)
  local verdict = judge(plan.capacity, used, cost)
  if not verdict then
    local over, room = start + plan.window, plan.capacity - cost
    if current <= room then
      verdict = faded(plan, over, previous, room - current) - now
    else
      verdict = faded(plan, over + plan.window, current, room) - now
    end
  end
  return used, verdict, reset_after(plan)
end

function counter.commit(plan, cost)
  if cost > MAX - current then
    cost = MAX - current
  end
  current = current + cost
  save(plan)
  return now < start and start or now, cost, reset_after(plan)
end

function counter.rarely()
  counter.terms = { 'window' }

  function counter.refund(plan, at, amount)
    if at >= start and at < start + plan.window then
      current = current - math.min(amount, current)
      save(plan)
    elseif at < start and at + plan.window >= start then
      previous = previous - math.min(amount, previous)
      save(plan)
    end
  end

  -- What was estimated, the new window has counted.
  function counter.convert(old, new, since)
    roll(old, since)
    local at = math.max(since, start)
    current = used_at(old, since)
    start, previous = at - at % new.window, 0
    return current == 0
  end

  function counter.stamp()
    return start
  end

  function counter.persist(plan)
    kept = nil
    save(plan)
  end

  function counter.inspect()
    return { 'start', start, 'current', current, 'previous', previous }, {}
  end
end
