-- token-bucket, version 4: the twin of token_bucket.rs. A hash: `bucket`, which is spent, fraction and at (7 bytes each), as
-- `spent + fraction / per` tokens were missing then, and the plan. One field, because two are read as a table.

local function take_bucket(key, plan, cost, looks)
  local per, tokens, capacity, stretch = plan.per, plan.tokens, plan.capacity, plan.stretch
  if not stretch then
    -- All of it is in parts of a token, if these are not too many.
    local parts = (capacity + 1) * per
    if parts >= WHOLE then
      return
    end
    local rest = parts % tokens
    stretch = (parts - rest) / tokens + (rest > 0 and 1 or 0)
    plan.stretch = stretch
  end
  local value, owed, begun, kept = call('HGET', key, 'bucket'), cost * per, now - now % stretch, 0
  if value then
    local missing, part, time, under = unpack('>I7I7I7c35', value)
    local before, back = missing * per + part, (now - time) * tokens
    if under ~= plan.text or time > now or part >= per or before >= WHOLE or back >= WHOLE then
      return
    elseif before > back then
      owed = owed + (before - back)
    end
    kept = time
  end
  if owed > capacity * per then
    return
  elseif looks then
    return true
  end
  local part, rest = owed % per, owed % tokens
  local missing = (owed - part) / per
  call('HSET', key, 'bucket', pack('>I7I7I7c0', missing, part, now, plan.text))
  if kept < begun then
    call('PEXPIRE', key, ttl(begun + 2 * stretch - now))
  end
  return part > 0 and missing + 1 or missing, (owed - rest) / tokens + (rest > 0 and 1 or 0)
end

algorithms['token-bucket'] = { needs = { 'tokens', 'per', 'capacity', 'window' }, take = take_bucket }

-- Otherwise

local bucket = algorithms['token-bucket']

-- The longest time to refill a bucket: 100 years.
local MAX_REFILL = 100 * 366 * 86400000000

-- `kept` is a time of the stretch for which the key has its TTL.
local key, written, spent, fraction, at, kept

-- `back + rest / per` tokens more.
local function less(plan, back, rest)
  if back > spent or (back == spent and rest >= fraction) then
    spent, fraction = 0, 0
  elseif rest <= fraction then
    spent, fraction = spent - back, fraction - rest
  else
    spent, fraction = spent - back - 1, fraction + (plan.per - rest)
  end
end

-- Refills the bucket up to that time.
local function refill(plan, to)
  if at < to then
    if spent > 0 or fraction > 0 then
      less(plan, mul_div(to - at, plan.tokens, plan.per))
    end
    at = to
  elseif at - to > plan.window or (spent == 0 and fraction == 0) then
    spent, fraction, at = 0, 0, to
  end
end

-- A debt is kept in full, up to what the longest refill can pay.
local function payable(plan, tokens)
  local most = mul_div(MAX_REFILL, plan.tokens, plan.per)
  return math.min(tokens, most, MAX)
end

-- How long until no more than `allowed` whole tokens are missing.
local function refill_time(plan, allowed)
  local tokens = plan.tokens
  local whole, rest = mul_div(spent - allowed, plan.per, tokens)
  if fraction == 0 then
    return rest > 0 and whole + 1 or whole
  end
  -- The sum of the two may be too large to be exact.
  local more, left = mul_div(fraction, 1, tokens)
  if rest == 0 and left == 0 then
    return whole + more
  end
  return whole + more + (left > tokens - rest and 2 or 1)
end

function bucket.reset_after(plan)
  return spent == 0 and fraction == 0 and 0 or at + refill_time(plan, 0) - now
end

-- The start of the stretch of time that a time is in, a stretch being what a full burst takes to come back; and its length.
local function stretch_of(plan, time)
  local stretch = plan.stretch
  if not stretch then
    stretch = mul_div_ceil(plan.capacity + 1, plan.per, plan.tokens)
    plan.stretch = stretch
  end
  return time - time % stretch, stretch
end

-- A TTL that outlasts every bucket written in the same stretch: so it need not be set each time. Debts last longer and are seen to
-- on their own.
local function save(plan)
  local begun, stretch = stretch_of(plan, at)
  local debt = spent > plan.capacity
  call('HSET', key, 'bucket', pack('>I7I7I7c0', spent, fraction, at, plan.text))
  if debt or kept < begun or written ~= plan.text then
    call('PEXPIRE', key, ttl(begun + stretch + (debt and refill_time(plan, 0) or stretch) - now))
    kept, written = at, plan.text
  end
end

function bucket.load(of)
  local value = call('HGET', of, 'bucket')
  key = of
  if value then
    spent, fraction, at, written = unpack('>I7I7I7c35', value)
    kept = at
  else
    written, spent, fraction, at, kept = nil, 0, 0, 0, 0
  end
  return written
end

function bucket.evaluate(plan, cost)
  refill(plan, now)
  local used, capacity = spent, plan.capacity
  if fraction > 0 then
    used = spent + 1
  end
  -- When all is back takes long to say: who wants to know asks.
  if cost <= capacity - used then
    return used, ALLOWED
  end
  return used, judge(capacity, used, cost) or at + refill_time(plan, capacity - cost) - now
end

function bucket.commit(plan, cost)
  local before = spent
  spent = before + cost
  if spent > plan.capacity then
    spent = payable(plan, spent)
  end
  save(plan)
  return at, spent - before
end

function bucket.rarely()
  bucket.terms = { 'tokens', 'per' }

  -- Gives back what would not have been refilled since.
  function bucket.refund(plan, when, amount)
    if when <= at then
      local had_spent, had_fraction, had_at = spent, fraction, at
      spent, fraction, at = amount, 0, when
      refill(plan, had_at)
      local back, rest = spent, fraction
      spent, fraction, at = had_spent, had_fraction, had_at
      less(plan, back, rest)
      save(plan)
    end
  end

  -- What was missing still is.
  function bucket.convert(old, new, since)
    refill(old, since)
    fraction = mul_div_ceil(fraction, new.per, old.per)
    if fraction >= new.per then
      spent, fraction = spent + 1, 0
    end
    spent = payable(new, spent)
    return spent == 0 and fraction == 0
  end

  function bucket.stamp()
    return at
  end

  function bucket.persist(plan)
    kept, written = 0, nil
    save(plan)
  end

  function bucket.inspect()
    return { 'missing', spent, 'fraction', fraction, 'at', at }, {}
  end
end
