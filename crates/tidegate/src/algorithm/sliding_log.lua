-- sliding-log, version 8: the twin of sliding_log.rs. A sorted set: score = time; member = time, the cumulative cost up to and
-- with the entry, and its own if that is not 1 (7 bytes each). No question needs the whole set: what any range has cost is one
-- subtraction. Entries of one microsecond are one member. After all of them stands the head: the time of the oldest entry, the
-- cumulative cost before it (7 bytes each), and the plan. So the newest entry and the head are read together.
--
-- The time is in the member too because Redis takes a microsecond to write out a score.

-- The score of the head, above all times.
local HEAD = '9007199254740992'

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

-- What has gone may stand there for a part of the window, one in so many, so that it goes together: to take out what has gone by each hit
-- costs more than the hit. So much of it, which is as many entries at most, may stand there for longer.
local LATE, LITTLE = 4, 8

local function take_log(key, plan, cost, looks)
  local ends, window, capacity = call('ZRANGE', key, '-2', '-1'), plan.window, plan.capacity
  local member, head = ends[1], ends[2]
  if not member then
    if cost > capacity then
      return
    elseif looks then
      return true
    end
    call('ZADD', key, HEAD, pack('>I7I7c0', now, 0, plan.text), now_text, member_of(now, cost, cost))
    keep(key, plan, now)
    return cost, window
  elseif not head then
    error('not a log of ours')
  end
  local newest, last = unpack('>I7I7', member)
  local oldest, base, under = unpack('>I7I7c35', head)
  if under ~= plan.text or newest >= now or last <= base then
    return
  end
  local horizon, used, total = now - window, last - base, last + cost
  if oldest <= horizon then
    if newest <= horizon then
      return
    end
    if plan.looked ~= now then
      plan.looked, plan.horizon = now, '(' .. text(horizon)
    end
    local _, first, its = parts(call('ZRANGE', key, plan.horizon, '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1])
    local before = first - its
    if oldest <= horizon - window / LATE and before - base > LITTLE then
      return
    end
    used = last - before
  end
  if used + cost > capacity or total >= WHOLE then
    return
  elseif looks then
    return true
  end
  call('ZADD', key, now_text, cost == 1 and pack('>I7I7', now, total) or pack('>I7I7I7', now, total, cost))
  if newest < now - now % window then
    keep(key, plan, now)
  end
  return used + cost, window
end

algorithms['sliding-log'] = { needs = { 'window', 'grain' }, take = take_log }

-- Otherwise

local log = algorithms['sliding-log']

-- `member` is the newest entry, of time `newest` and end `last`. What another window had let go up to `floor` when this one came into
-- force, it has.
local key, head, written, oldest, base, member, newest, last, floor

function log.load(of)
  local ends = call('ZRANGE', of, '-2', '-1')
  key, head, floor = of, ends[2], 0
  if head then
    member = ends[1]
    newest, last = unpack('>I7I7', member)
    oldest, base, written = unpack('>I7I7c35', head)
  elseif ends[1] then
    error('not a log of ours')
  else
    written, newest = nil, nil
  end
  return written
end

-- Found by evaluate: the time to judge by, or nothing where no entry counts; time of the first entry that does, the end before it,
-- what all that do have cost, and up to when entries are gone, 0 if none is.
local at, first, before, used, gone

-- The entry at a rank, or the newest.
local function at_rank(rank)
  rank = text(rank)
  local found = call('ZRANGE', key, rank, rank)[1]
  return found and found ~= head and found or member
end

-- The time to judge by: none where all entries have expired, or are so far ahead that the clock was wrong.
local function effective(plan, time)
  local window = plan.window
  if newest and newest + window > time and newest <= time + window then
    return newest > time and newest or time
  end
end

-- Finds the first entry after a time, before which all have gone.
local function skip(cutoff)
  local ends, its
  gone = cutoff
  first, ends, its = parts(call('ZRANGE', key, '(' .. text(cutoff), '+inf', 'BYSCORE', 'LIMIT', '0', '1')[1])
  before = wrapping_sub(ends, its)
end

-- The time of the first entry with which `need` of the cost has left, found by galloping over ranks from the first that counts.
local function leaving(need)
  local low, step = gone > 0 and call('ZCOUNT', key, '-inf', text(gone)) or 0, 1
  local time, ends = parts(at_rank(low))
  if wrapping_sub(ends, before) >= need then
    return time
  end
  repeat
    time, ends = parts(at_rank(low + step))
    step = step * 2
  until wrapping_sub(ends, before) >= need
  local high = low + step / 2
  low = low + math.floor(step / 4)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    local candidate_time, candidate_ends = parts(at_rank(middle))
    if wrapping_sub(candidate_ends, before) < need then
      low = middle
    else
      high, time = middle, candidate_time
    end
  end
  return time
end

-- Adds an entry, if there is one, and a new head; then the old one goes, and what does not count. In this order: to add may fail for
-- want of memory.
local function renew(plan, time, entry)
  local old = head
  oldest, base, written = first, before, plan.text
  head = pack('>I7I7', first, before) .. written
  if entry then
    call('ZADD', key, HEAD, head, time, entry)
  else
    call('ZADD', key, HEAD, head)
  end
  if old and old ~= head then
    call('ZREM', key, old)
  end
  if gone > 0 then
    call('ZREMRANGEBYSCORE', key, '-inf', text(gone))
  end
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
  local cutoff = at - window
  if cutoff < floor then
    cutoff = floor
  end
  if oldest > cutoff then
    first, before, gone = oldest, base, 0
  else
    skip(cutoff)
  end
  used = last - before
  if used < 0 then
    used = wrapping_sub(last, before)
  end
  local lasts = newest + window - now
  if cost <= capacity - used then
    return used, ALLOWED, lasts
  end
  return used, judge(capacity, used, cost) or leaving(used - (capacity - cost)) + window - now, lasts
end

function log.commit(plan, cost)
  local window = plan.window
  if not at then
    cost = math.min(cost, MAX)
    if written then
      call('DEL', key)
    end
    head, at, newest, last, floor = nil, now, now, cost, 0
    first, before, used, gone = now, 0, 0, 0
    member = member_of(now, cost, cost)
    renew(plan, now_text, member)
    keep(key, plan, now)
    return now, cost, window
  end
  if cost > MAX - used then
    cost = MAX - used
  end
  local had, had_member, own, time = newest, member, cost, now_text
  if at == had then
    local _, _, its = parts(member)
    own = cost + its
  end
  if at ~= now then
    time = text(at)
  end
  last, newest = wrapping_add(last, cost), at
  member = own == 1 and pack('>I7I7', at, last) or pack('>I7I7I7', at, last, own)
  local expires = had < at - at % window
  if gone == 0 and written == plan.text then
    call('ZADD', key, time, member)
  else
    expires = expires or written ~= plan.text
    renew(plan, time, member)
  end
  if at == had and member ~= had_member then
    call('ZREM', key, had_member)
  end
  if expires then
    keep(key, plan, at)
  end
  return at, cost, at + window - now
end

function log.rarely()
  log.terms = { 'window', 'grain' }

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
    renew(plan)
    local given = when > 0 and call('ZRANGE', key, text(when), text(when), 'BYSCORE')[1]
    if given then
      local _, ends, cost = parts(given)
      local back = math.min(amount, cost)
      local rank, count = call('ZRANK', key, given), call('ZCARD', key) - 1
      local later = count - 1 - rank <= rank
      call('ZREM', key, given)
      if later then
        move(rank, count - 2, wrapping_sub, back)
      else
        move(0, rank - 1, wrapping_add, back)
      end
      if back < cost then
        call('ZADD', key, text(when), member_of(when, later and wrapping_sub(ends, back) or ends, cost - back))
      elseif count == 1 then
        call('DEL', key)
        return
      end
      skip(0)
      gone = 0
      renew(plan)
    end
    keep(key, plan, newest)
  end

  -- Keeps what the old window still held.
  function log.convert(old, new, since)
    local time = effective(old, since)
    if time then
      floor = math.max(time - old.window, floor)
    else
      newest = nil
    end
    return not time
  end

  function log.stamp()
    return newest
  end

  function log.persist(plan)
    skip(floor)
    renew(plan)
    keep(key, plan, newest)
  end

  function log.inspect()
    local entries = {}
    for _, of in ipairs(call('ZRANGE', key, text(-INSPECTED - 1), '-2')) do
      local time, _, cost = parts(of)
      table.insert(entries, time)
      table.insert(entries, cost)
    end
    return {}, entries
  end
end
