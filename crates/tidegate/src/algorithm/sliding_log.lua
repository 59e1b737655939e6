-- sliding-log, version 1: the twin of sliding_log.rs. A sorted set: score = time; member = time, the cumulative cost up to and
-- with the entry, and its own if that is not 1 (7 bytes each). No question needs the whole set: what any range has cost is one
-- subtraction. Entries of one microsecond are one member. Before all of them, with score 0, stands the plan.
--
-- The time is in the member too because Redis takes a microsecond to write out a score.

local log = { terms = { 'window', 'grain' }, needs = { 'window', 'grain' } }

local PLAN = 'plan:'

-- `member` is the newest entry, of time `newest`, end `last` and cost `own`; `oldest` the oldest. What another window had let go
-- up to `floor` when this one came into force, it has.
local key, written, oldest, member, newest, last, own, floor
-- Found by evaluate: the time to judge by, or nothing where no entry counts; the first entry that does, the end before it, what all
-- that do have cost, and up to when entries are gone, 0 if none is.
local at, first, base, used, gone

-- Time, end and cost of the entry that a member is.
local function parts(of)
  if #of == 14 then
    local time, ends = unpack('>I7I7', of)
    return time, ends, 1
  end
  return unpack('>I7I7I7', of)
end

local function member_of(time, ends, cost)
  if cost == 1 then
    return pack('>I7I7', time, ends)
  end
  return pack('>I7I7I7', time, ends, cost)
end

local function at_rank(rank)
  rank = text(rank)
  return call('ZRANGE', key, rank, rank)[1]
end

-- The time to judge by: none where all entries have expired, or are so far ahead that the clock was wrong.
local function effective(plan, time)
  local window = plan.window
  if newest and newest + window > time and newest <= time + window then
    return newest > time and newest or time
  end
end

-- The time of the first entry with which `need` of the cost has left, found by galloping over ranks from the first that counts.
local function leaving(need)
  local time, ends = parts(first)
  if wrapping_sub(ends, base) >= need then
    return time
  end
  local low, step, found = call('ZRANK', key, first), 1, nil
  repeat
    found = at_rank(low + step) or member
    time, ends = parts(found)
    step = step * 2
  until wrapping_sub(ends, base) >= need
  local high = low + step / 2
  low = low + math.floor(step / 4)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    local candidate_time, candidate_ends = parts(at_rank(middle) or member)
    if wrapping_sub(candidate_ends, base) < need then
      low = middle
    else
      high, time = middle, candidate_time
    end
  end
  return time
end

-- Drops what does not count, and writes down that the log is under this plan now.
local function tidy(plan)
  if gone > 0 then
    call('ZREMRANGEBYSCORE', key, '(0', text(gone))
  end
  if written ~= plan.text then
    call('ZREM', key, PLAN .. written)
    call('ZADD', key, '0', PLAN .. plan.text)
  end
end

-- A TTL that outlasts every entry of the same stretch of time, a window long: so it need not be set for each.
local function keep(plan, time, before)
  local window = plan.window
  local begun = time - time % window
  if before < begun or written ~= plan.text then
    call('PEXPIRE', key, ttl(begun + 2 * window - now))
  end
end

function log.load(of)
  local head = call('ZRANGE', of, '0', '2')
  key, floor, written = of, 0, head[1]
  if written then
    written, oldest, member = sub(written, 6), head[2], head[3]
    member = member and call('ZRANGE', of, '-1', '-1')[1] or oldest
    if #member == 14 then
      newest, last = unpack('>I7I7', member)
      own = 1
    else
      newest, last, own = unpack('>I7I7I7', member)
    end
  else
    newest = nil
  end
  return written
end

function log.evaluate(plan, cost)
  local window, capacity = plan.window, plan.capacity
  if not newest then
    at = nil
  elseif newest > now then
    at = effective(plan, now)
  else
    at = newest + window > now and now or nil
  end
  if not at then
    return 0, judge(capacity, 0, cost), 0
  end
  local cutoff, time, ends, its = at - window, nil, nil, 1
  if cutoff < floor then
    cutoff = floor
  end
  first, gone = oldest, 0
  if #first == 14 then
    time, ends = unpack('>I7I7', first)
  else
    time, ends, its = unpack('>I7I7I7', first)
  end
  if time <= cutoff then
    gone = cutoff
    first = call('ZRANGE', key, '(' .. text(cutoff), '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1]
    time, ends, its = parts(first)
  end
  base = wrapping_sub(ends, its)
  used = last - base
  if used < 0 then
    used = wrapping_sub(last, base)
  end
  local lasts = newest + window - now
  if cost <= capacity - used then
    return used, ALLOWED, lasts
  end
  return used, judge(capacity, used, cost) or leaving(used - (capacity - cost)) + window - now, lasts
end

function log.commit(plan, cost)
  if not at then
    cost = math.min(cost, MAX)
    if written then
      call('DEL', key)
    end
    at, newest, last, own, floor, written = now, now, cost, cost, 0, nil
    member = member_of(at, last, own)
    oldest = member
    call('ZADD', key, '0', PLAN .. plan.text, NOW, member)
    keep(plan, at, 0)
    written = plan.text
    return at, cost, plan.window
  end
  if gone > 0 or written ~= plan.text then
    tidy(plan)
  end
  if cost > MAX - used then
    cost = MAX - used
  end
  local before = newest
  if at == before then
    call('ZREM', key, member)
    own = cost + own
  else
    own = cost
  end
  local whole = first == member and at == before
  last, newest = wrapping_add(last, cost), at
  member = own == 1 and pack('>I7I7', at, last) or pack('>I7I7I7', at, last, own)
  oldest = whole and member or first
  call('ZADD', key, at == now and NOW or text(at), member)
  local window = plan.window
  if before < at - at % window or written ~= plan.text then
    keep(plan, at, before)
  end
  written = plan.text
  return at, cost, at + window - now
end

function log.rarely()
  -- Moves the ends of the entries at ranks `from` to `to` by `back`, up or down.
  local function move(from, to, shift, back)
    for rank = from, to do
      local moved = at_rank(rank)
      local time, ends, cost = parts(moved)
      call('ZREM', key, moved)
      call('ZADD', key, text(time), member_of(time, shift(ends, back), cost))
    end
  end

  -- The entry gives back what it can; the ends of all later ones or of all earlier ones, whichever are fewer, move with it.
  function log.refund(plan, when, amount)
    if not at then
      return
    end
    tidy(plan)
    local given = when > 0 and call('ZRANGE', key, text(when), text(when), 'BYSCORE')[1]
    if given then
      local _, ends, cost = parts(given)
      local back = math.min(amount, cost)
      local rank, count = call('ZRANK', key, given), call('ZCARD', key)
      local later = count - 1 - rank <= rank - 1
      call('ZREM', key, given)
      if later then
        move(rank, count - 2, wrapping_sub, back)
      else
        move(1, rank - 1, wrapping_add, back)
      end
      if back < cost then
        call('ZADD', key, text(when), member_of(when, later and wrapping_sub(ends, back) or ends, cost - back))
      elseif count == 2 then
        call('DEL', key)
      end
    end
    keep(plan, at, newest)
  end

  -- Keeps what the old window still held.
  function log.convert(old, new, since)
    local time = effective(old, since)
    if time then
      floor = math.max(time - old.window, floor)
    else
      newest = nil
    end
  end

  function log.stamp()
    return newest
  end

  function log.persist(plan)
    if newest and newest + plan.window > now then
      gone = floor
      tidy(plan)
      oldest = at_rank(1)
      call('PEXPIRE', key, ttl(math.max(newest - newest % plan.window + 2 * plan.window - now, 0)))
      written = plan.text
    end
  end

  function log.inspect()
    local entries = {}
    for _, of in ipairs(call('ZRANGE', key, text(-INSPECTED), '-1')) do
      if sub(of, 1, #PLAN) ~= PLAN then
        local time, _, cost = parts(of)
        table.insert(entries, time)
        table.insert(entries, cost)
      end
    end
    return {}, entries
  end
end

algorithms['sliding-log'] = log
