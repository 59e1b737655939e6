-- fixed-window, version 3: the twin of fixed_window.rs. A string: the start of the window and what it has counted (7 bytes each),
-- and the plan.
--
-- A calendar's plan has its number for a window, which is no window's length, and times for what this algorithm does not need: when the
-- window before that of the caller begins (grain), its own (interval), the next (tokens), and the one after that (per).

local CALENDAR = 2 ^ 52

local function take_fixed(key, plan, cost, looks)
  local window = plan.window
  if window >= CALENDAR then
    return
  end
  local value = call('GET', key)
  if value then
    local start, used, under = unpack('>I7I7c35', value)
    if start > now or under ~= plan.text then
      return
    end
    if now - start < window and used > 0 then
      local total = used + cost
      if total > plan.capacity then
        return
      elseif looks then
        return true
      end
      call('SETRANGE', key, '7', pack('>I7', total))
      return total, start + window - now
    end
  end
  if cost > plan.capacity then
    return
  elseif looks then
    return true
  end
  local lasts = window - now % window
  call('SET', key, pack('>I7I7c0', now - now % window, cost, plan.text), 'PX', ttl(lasts))
  return cost, lasts
end

algorithms['fixed-window'] = { needs = { 'window' }, take = take_fixed }

-- Otherwise

local fixed = algorithms['fixed-window']

-- `ends` is the end of the window that was evaluated, `kept` the start for which the key has its TTL.
local key, written, start, used, ends, kept

-- Makes the window the one to judge by: the stored one while it runs, and while the clock is behind it by at most a window.
local function move(plan, at)
  local window = plan.window
  if window < CALENDAR then
    if used == 0 or at - start >= window or start - at > window then
      start, used = at - at % window, 0
    end
    ends = start + window
    return
  end
  local current, following, after = plan.interval, plan.tokens, plan.per
  if at < current then
    current, following, after = plan.grain, current, following
  elseif at >= following then
    -- What comes after that the caller did not foresee: the clock has stepped back over it.
    current, following = following, after
  end
  if at < current or at >= following then
    error('the caller is in another window, and has been told the time')
  elseif used == 0 or start < current or start >= after then
    start, used, ends = current, 0, following
  elseif start < following then
    start, ends = current, following
  else
    start, ends = following, after
  end
end

local function save(plan)
  local value = pack('>I7I7', start, used)
  if kept == start and written == plan.text then
    call('SETRANGE', key, '0', value)
  else
    call('SET', key, value .. plan.text, 'PX', ttl(ends - now))
    kept, written = start, plan.text
  end
end

function fixed.load(of)
  local value = call('GET', of)
  key = of
  if value then
    start, used, written = unpack('>I7I7c35', value)
    kept = start
  else
    written, start, used, kept = nil, 0, 0, 0
  end
  return written
end

function fixed.evaluate(plan, cost)
  local window, capacity = plan.window, plan.capacity
  if used == 0 or now - start >= window or start > now or window >= CALENDAR then
    move(plan, now)
  else
    ends = start + window
  end
  local lasts = ends - now
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
  return now < start and start or now, cost, ends - now
end

function fixed.rarely()
  fixed.terms = { 'window' }

  function fixed.refund(plan, at, amount)
    -- What is too far ahead of the clock to count stays as it is.
    if used > 0 and at >= start and at < ends then
      used = used - math.min(amount, used)
      save(plan)
    end
  end

  -- The window that a time is in: when it begins and ends. Beyond the boundaries it begins then, and ends when no month goes on.
  local function window_of(plan, at)
    local window, begins = plan.window, at
    if window < CALENDAR then
      return at - at % window, at - at % window + window
    end
    for _, boundary in ipairs({ plan.grain, plan.interval, plan.tokens, plan.per }) do
      if at < boundary then
        return begins, boundary
      end
      begins = boundary
    end
    return at, at + 32 * 86400000000
  end

  -- What the running window has counted, the new one has. Of a calendar that is not known here only the TTL says whether the window
  -- runs: there was a second to spare.
  function fixed.convert(old, new, since)
    if old.window >= CALENDAR and not old.tokens then
      used = call('PTTL', key) > 1000 and used or 0
    elseif start ~= since then
      move(old, since)
    end
    start = window_of(new, math.max(since, start))
    return used == 0
  end

  function fixed.stamp()
    return start
  end

  function fixed.persist(plan)
    kept, start, ends = nil, window_of(plan, start)
    save(plan)
  end

  function fixed.inspect()
    return { 'start', start, 'used', used }, {}
  end
end
