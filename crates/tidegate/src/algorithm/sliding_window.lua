-- sliding-window, version 1: the twin of sliding_window.rs. A list: for each grain but the newest its time and the cumulative
-- cost up to and with it (7 bytes each); at the end the head, with all that nearly every hit needs: newest, used, oldest, base and
-- the number of older grains (7 bytes each), and the plan. No question needs the whole list.

local grains = { needs = { 'window', 'grain' } }

-- What another window had let go up to `floor` when this one came into force, it has.
local key, written, newest, used, oldest, base, older, floor
-- Found by evaluate: the time to judge by, or nothing where no grain counts, and how many of the older ones have expired then.
local at, expired

-- Whether two times fall in one grain.
local function one_grain(plan, one, other)
  local grain = plan.grain
  return one - one % grain == other - other % grain
end

-- Time and end of one of the older grains, the first being 0.
local function grain_at(index)
  local time, ends = unpack('>I7I7', call('LINDEX', key, text(index)))
  return time, ends
end

-- How many of the older grains come before the first of which `which` (1 its time, 2 its end less the base) is at least `least`, and
-- that one's time and end; galloping from the oldest.
local function partition(which, least)
  local low, high, step = -1, 0, 1
  local time, ends
  local function holds(index)
    local its_time, its_ends = grain_at(index)
    if (which == 1 and its_time or wrapping_sub(its_ends, base)) >= least then
      time, ends = its_time, its_ends
      return true
    end
  end
  while high < older and not holds(high) do
    low, high, step = high, high + step, step * 2
  end
  if high > older then
    high = older
  end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if holds(middle) then
      high = middle
    else
      low = middle
    end
  end
  return high, time, ends
end

-- The cost of the first `n` of the older grains.
local function cost_of(n)
  if n == 0 then
    return 0
  end
  local _, ends = grain_at(n - 1)
  return wrapping_sub(ends, base)
end

-- The time to judge by: none where all grains have expired, or are so far ahead that the clock was wrong.
local function effective(plan, time)
  local window = plan.window
  if used > 0 and newest + window > time and newest <= time + window then
    return newest > time and newest or time
  end
end

-- The time of the first grain with which `need` of the cost has left.
local function leaving(need)
  if older == 0 then
    return newest
  elseif need <= 1 then
    return oldest
  end
  local _, time = partition(2, need)
  return time or newest
end

-- Drops the older grains that have expired.
local function purge()
  if expired > 0 then
    local _, ends = grain_at(expired - 1)
    used, base, older = used - wrapping_sub(ends, base), ends, older - expired
    call('LPOP', key, text(expired))
    oldest = older > 0 and grain_at(0) or newest
    expired = 0
  end
end

local function head(plan)
  return pack('>I7I7I7I7I7', newest, used, oldest, base, older) .. plan.text
end

-- A TTL that outlasts every grain of the same stretch of time, a window long: so it need not be set for each.
local function keep(plan, before)
  local window = plan.window
  local begun = newest - newest % window
  if before < begun or written ~= plan.text then
    call('PEXPIRE', key, ttl(begun + 2 * window - now))
    written = plan.text
  end
end

function grains.load(of)
  local value = call('LINDEX', of, '-1')
  key, floor = of, 0
  if value then
    newest, used, oldest, base, older = unpack('>I7I7I7I7I7', value)
    written = sub(value, 36)
  else
    written, newest, used, oldest, base, older = nil, 0, 0, 0, 0, 0
  end
  return written
end

function grains.evaluate(plan, cost)
  local window, capacity = plan.window, plan.capacity
  expired = 0
  if used == 0 then
    at = nil
  elseif newest > now then
    at = effective(plan, now)
  else
    at = newest + window > now and now or nil
  end
  if not at then
    return 0, judge(capacity, 0, cost), 0
  end
  local cutoff, gone, lasts = at - window, 0, newest + window - now
  if cutoff < floor then
    cutoff = floor
  end
  if oldest <= cutoff and older > 0 then
    expired = partition(1, cutoff + 1)
    gone = cost_of(expired)
  end
  local live = used - gone
  if cost <= capacity - live then
    return live, ALLOWED, lasts
  end
  return live, judge(capacity, live, cost) or leaving(gone + live - (capacity - cost)) + window - now, lasts
end

function grains.commit(plan, cost)
  local before, grain, window = newest, plan.grain, plan.window
  if not at then
    cost = math.min(cost, MAX)
    if written then
      call('DEL', key)
    end
    at, written, newest, used, oldest, base, older, floor = now, nil, now, cost, now, 0, 0, 0
    call('RPUSH', key, head(plan))
    keep(plan, 0)
    return now, cost, window
  end
  if expired > 0 then
    purge()
  end
  if cost > MAX - used then
    cost = MAX - used
  end
  newest = at
  if before - before % grain == at - at % grain then
    if older == 0 then
      oldest = at
    end
    used = used + cost
    call('LSET', key, '-1', pack('>I7I7I7I7I7', at, used, oldest, base, older) .. plan.text)
  else
    call('LSET', key, '-1', pack('>I7I7', before, wrapping_add(base, used)))
    used, older = used + cost, older + 1
    call('RPUSH', key, pack('>I7I7I7I7I7', at, used, oldest, base, older) .. plan.text)
  end
  if before < at - at % window or written ~= plan.text then
    keep(plan, before)
  end
  return at, cost, at + window - now
end

function grains.rarely()
  grains.terms = { 'window', 'grain' }

  -- Moves the ends of grains by `back`, up or down.
  local function move(from, to, shift, back)
    for i = from, to do
      local time, ends = grain_at(i)
      call('LSET', key, text(i), pack('>I7I7', time, shift(ends, back)))
    end
  end

  -- The grain gives back what it can; the ends of all later ones or of all earlier ones, whichever are fewer, move with it.
  function grains.refund(plan, when, amount)
    if not at then
      return
    end
    purge()
    local before = newest
    local index, time, ends = partition(1, when)
    if not time then
      -- Only the newest is left to have it.
      local own = used - cost_of(older)
      if when <= newest and one_grain(plan, when, newest) then
        used = used - math.min(amount, own)
        if amount >= own and older == 0 then
          call('DEL', key)
          return
        elseif amount >= own then
          -- The one before it is now the newest, and makes room for the head.
          older = older - 1
          newest = grain_at(older)
          oldest = older > 0 and oldest or newest
          call('RPOP', key)
        end
      end
    elseif one_grain(plan, when, time) then
      local own = wrapping_sub(ends, base) - cost_of(index)
      local back = math.min(amount, own)
      if older - index <= index then
        move(index, older - 1, wrapping_sub, back)
      else
        move(0, index - 1, wrapping_add, back)
        base = wrapping_add(base, back)
      end
      used = used - back
      if back == own then
        call('LSET', key, text(index), '')
        call('LREM', key, '1', '')
        older = older - 1
        oldest = older > 0 and grain_at(0) or newest
      end
    end
    call('LSET', key, '-1', head(plan))
    keep(plan, before)
  end

  -- Keeps what the old window still held.
  function grains.convert(old, new, since)
    local time = effective(old, since)
    if time then
      floor = math.max(time - old.window, floor)
    else
      used = 0
    end
  end

  function grains.stamp()
    return newest
  end

  function grains.persist(plan)
    if used > 0 and newest + plan.window > now then
      expired = older > 0 and oldest <= floor and partition(1, floor + 1) or 0
      purge()
      call('LSET', key, '-1', head(plan))
      written = nil
      keep(plan, newest)
    end
  end

  function grains.inspect()
    local entries = {}
    local skipped = math.max(older + 1 - INSPECTED, 0)
    local before = base
    if skipped > 0 then
      local _
      _, before = grain_at(skipped - 1)
    end
    for i = skipped, older - 1 do
      local time, ends = grain_at(i)
      table.insert(entries, time)
      table.insert(entries, wrapping_sub(ends, before))
      before = ends
    end
    if used > 0 then
      table.insert(entries, newest)
      table.insert(entries, wrapping_sub(wrapping_add(base, used), before))
    end
    return {}, entries
  end
end

algorithms['sliding-window'] = grains
