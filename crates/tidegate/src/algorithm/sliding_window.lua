-- sliding-window, version 7: the twin of sliding_window.rs. A string: the head, with all that nearly every hit needs: the desk (below),
-- newest, used, the number of older grains, oldest, base, and which slot has the first of them, of how many (7 bytes each), and the
-- plan; then the slots, a ring, in which each grain but the newest has its time and the cumulative cost up to and with it (7 bytes
-- each). No question needs the whole string. The ring is small at first, and grows when it is full.
--
-- Slots are written in fours. Until all of a four are known, those that are stand on the desk, right before the numbers that change
-- with them: so a new grain is one write, and every fourth two.

-- Where the slots begin: after four places of the desk, seven numbers and the plan.
local SLOTS = 140
local DESK = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

-- Slots that a ring has at first, and at most, so that it fits into a string of Redis's: a head that says more is not ours.
local FEW, MANY = 16, 2 ^ 25

local function assure(older, slots)
  if older > slots or slots > MANY or slots < 4 or slots % 4 > 0 then
    error('not a window of ours')
  end
end

-- Begins a window.
local function begin(key, plan, cost)
  local window, slots = plan.window, FEW
  local value = pack('>c0I7I7I7I7I7I7I7c0', DESK, now, cost, 0, now, 0, 0, slots, plan.text)
  call('SET', key, value, 'PX', ttl(2 * window - now % window))
  return slots, value
end

-- Writes a cost at a time that is not before the newest grain, `before`: into it, or into a new one. What the cost and the number
-- of older grains are then. Of a state that has been purged and not been written since, it is told the time of the oldest grain too
-- (`begun`), so that it is all one write.
local function add(key, head, plan, time, cost, before, sum, count, less, from, room, begun)
  local total = sum + cost
  if before >= time - time % plan.grain then
    if begun then
      call('SETRANGE', key, '56', pack('>I7I7I7I7I7I7', time, total, count, count == 0 and time or begun, less, from))
    elseif count == 0 then
      call('SETRANGE', key, '56', pack('>I7I7I7I7', time, total, 0, time))
    else
      call('SETRANGE', key, '56', pack('>I7I7', time, total))
    end
  else
    local slot, ends = (from + count) % room, less + sum
    if ends >= WHOLE then
      ends = less - (WHOLE - sum)
    end
    count = count + 1
    -- Where it stands on the desk, and what comes between it and the numbers: they are written together.
    local place, at, between = slot % 4, '42', ''
    if place == 0 then
      at, between = '0', '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
    elseif place == 1 then
      at, between = '14', '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
    elseif place == 2 then
      at, between = '28', '\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
    else
      assure(count, room)
      call('SETRANGE', key, text(SLOTS + (slot - 3) * 14), sub(head, 1, 42) .. pack('>I7I7', before, ends))
    end
    if begun then
      call('SETRANGE', key, at, pack('>I7I7c0I7I7I7I7I7I7', before, ends, between, time, total, count, begun, less, from))
    else
      call('SETRANGE', key, at, pack('>I7I7c0I7I7I7', before, ends, between, time, total, count))
    end
  end
  if before < time - time % plan.window then
    keep(key, plan, time)
  end
  return total, count
end

-- How many of the older grains have gone at a time by which the oldest has and the newest has not, the end of the last of them, and the
-- time of the first that is left. Nothing where it takes more than a look at the first few, which is all that a key in use has.
local function first_gone(key, head, horizon, latest, count, from, room)
  local stored, few, chunk = count - (from + count) % room % 4, 4
  if few > stored then
    few = stored
  end
  if few > room - from then
    few = room - from
  end
  if few > 0 then
    local start = SLOTS + from * 14
    chunk = call('GETRANGE', key, text(start), text(start + few * 14 - 1))
  end
  local gone, less
  for index = 0, count - 1 do
    local time, ends
    if index >= stored then
      time, ends = unpack('>I7I7', head, (from + index) % room % 4 * 14 + 1)
    elseif index < few then
      time, ends = unpack('>I7I7', chunk, index * 14 + 1)
    else
      return
    end
    if time > horizon then
      return gone, less, time
    end
    gone, less = index + 1, ends
  end
  return gone, less, latest
end

local function take_grains(key, plan, cost, looks)
  local head, window, capacity = call('GETRANGE', key, '0', '139'), plan.window, plan.capacity
  if head == '' then
    if cost > capacity then
      return
    elseif looks then
      return true
    end
    begin(key, plan, cost)
    return cost, window
  end
  local newest, used, older, oldest, base, first, slots, under = unpack('>I7I7I7I7I7I7I7c35', head, 57)
  if under ~= plan.text or newest > now or used == 0 or older > slots then
    return
  end
  local horizon = now - window
  if oldest > horizon then
    if used + cost > capacity or older == slots and newest < now - now % plan.grain then
      return
    elseif looks then
      return true
    end
    return add(key, head, plan, now, cost, newest, used, older, base, first, slots), window
  elseif newest > horizon then
    local gone, ends, time = first_gone(key, head, horizon, newest, older, first, slots)
    if gone then
      local live = used - (ends >= base and ends - base or ends + (WHOLE - base))
      if live <= 0 or live + cost > capacity then
        return
      elseif looks then
        return true
      end
      local total = add(key, head, plan, now, cost, newest, live, older - gone, ends, (first + gone) % slots, slots, time)
      return total, window
    end
  end
end

algorithms['sliding-window'] = { needs = { 'window', 'grain' }, take = take_grains }

-- Otherwise

local grains = algorithms['sliding-window']

-- Where the numbers begin: after the desk.
local NUMBERS = #DESK

-- What another window had let go up to `floor` when this one came into force, it has.
local key, head, written, newest, used, oldest, base, older, first, slots, floor

function grains.load(of)
  key, head, floor = of, call('GETRANGE', of, '0', '139'), 0
  if head == '' then
    written, newest, used, oldest, base, older, first, slots = nil, 0, 0, 0, 0, 0, 0, 0
  else
    newest, used, older, oldest, base, first, slots, written = unpack('>I7I7I7I7I7I7I7c35', head, 57)
  end
  return written
end

-- Found by evaluate: the time to judge by, or nothing where no grain counts, and how many of the older ones have expired then.
local at, expired

-- Whether two times fall in one grain.
local function one_grain(plan, one, other)
  local grain = plan.grain
  return one - one % grain == other - other % grain
end

-- Where one of the older grains is, the first being 0: on the desk, if it is of the four that is not full, or in its slot.
local function slot(index)
  assure(older, slots)
  local at = (first + index) % slots
  if index >= older - (first + older) % slots % 4 then
    return at % 4 * 14
  end
  return SLOTS + at * 14
end

-- Time and end of one of the older grains.
local function grain_at(index)
  local from = slot(index)
  local time, ends = unpack('>I7I7', call('GETRANGE', key, text(from), text(from + 13)))
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

-- Writes the head anew.
local function save(plan)
  local numbers = pack('>I7I7I7I7I7I7I7', newest, used, older, oldest, base, first, slots) .. plan.text
  head = sub(head, 1, NUMBERS) .. numbers
  call('SETRANGE', key, '56', numbers)
end

-- Lets the older grains that have expired go: their slots are free.
local function purge(plan)
  local _, ends = grain_at(expired - 1)
  oldest = expired < older and grain_at(expired) or newest
  used, base, older = used - wrapping_sub(ends, base), ends, older - expired
  first, expired = (first + expired) % slots, 0
  save(plan)
end

-- How many grains besides the newest there can be, and one to spare, in fours.
local function enough(plan)
  return math.ceil((math.floor(plan.window / plan.grain) + 2) / 4) * 4
end

-- Makes a ring that is full larger, where it lies: twice as large, or as large as it will ever be. What had gone round to its beginning
-- comes after its end.
local function grow(plan)
  assure(older, slots)
  local last, round, most = slots, first - first % 4, enough(plan)
  if 2 * last > MANY then
    error('more hits than fit into a string')
  end
  slots = most > 2 * last and most <= math.min(8 * last, MANY) and most or 2 * last
  -- A string that grows is given twice the room that it needs then. So it is made to need half of what all slots do.
  local half = math.ceil((SLOTS + slots * 14) / 2)
  if call('STRLEN', key) < half then
    call('SETRANGE', key, text(half - 1), '\0')
  end
  -- From behind, so that a large one grows once.
  for from = math.floor((round - 1) / 4096) * 4096, 0, -4096 do
    local at, to = SLOTS + from * 14, SLOTS + math.min(from + 4096, round) * 14
    call('SETRANGE', key, text(at + last * 14), call('GETRANGE', key, text(at), text(to - 1)))
  end
  save(plan)
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
  local before, window = newest, plan.window
  if not at then
    cost = math.min(cost, MAX)
    at, written, newest, used, oldest, base, older, first, floor = now, plan.text, now, cost, now, 0, 0, 0, 0
    slots, head = begin(key, plan, cost)
    return now, cost, window
  end
  if expired > 0 then
    purge(plan)
  end
  if cost > MAX - used then
    cost = MAX - used
  end
  if cost == 0 then
    return at, 0, newest + window - now
  end
  if older >= slots and not one_grain(plan, before, at) then
    grow(plan)
  end
  newest = at
  used, older = add(key, head, plan, at, cost, before, used, older, base, first, slots)
  oldest = older > 0 and oldest or at
  return at, cost, at + window - now
end

function grains.rarely()
  grains.terms = { 'window', 'grain' }

  -- One grain less. Where the last four were full they are not any more, and stand on the desk.
  local function shorten()
    local tail = (first + older) % slots
    if tail % 4 == 0 then
      local from = SLOTS + (tail - 4) % slots * 14
      head = call('GETRANGE', key, text(from), text(from + 55)) .. sub(head, NUMBERS + 1)
      call('SETRANGE', key, '0', sub(head, 1, NUMBERS))
    end
    older = older - 1
  end

  -- How many of the older grains there are from this one on, one after the other as they lie.
  local function run(from)
    local on_desk = older - (first + older) % slots % 4
    if from >= on_desk then
      return older - from
    end
    return math.min(on_desk - from, slots - (first + from) % slots)
  end

  -- The older grains from one on and before another, as they are written.
  local function read(from, to)
    local parts = {}
    while from < to do
      local count, at = math.min(run(from), to - from), slot(from)
      table.insert(parts, call('GETRANGE', key, text(at), text(at + count * 14 - 1)))
      from = from + count
    end
    return table.concat(parts)
  end

  local function write(from, packed)
    while packed ~= '' do
      local count = math.min(run(from), #packed / 14)
      call('SETRANGE', key, text(slot(from)), sub(packed, 1, count * 14))
      from, packed = from + count, sub(packed, count * 14 + 1)
    end
  end

  -- Moves the ends of the grains from one on and before another by `back`, up or down, and the grains by `gap` places, a few at a time.
  local function move(from, to, gap, shift, back)
    while from < to do
      local few, low = math.min(to - from, 32), from
      if gap > 0 then
        -- From behind, so that none is written over which is still to come.
        low, to = to - few, to - few
      else
        from = from + few
      end
      local packed, moved = read(low, low + few), {}
      for at = 1, #packed, 14 do
        local time, ends = unpack('>I7I7', packed, at)
        table.insert(moved, pack('>I7I7', time, shift(ends, back)))
      end
      write(low + gap, table.concat(moved))
    end
  end

  -- The grain gives back what it can; the ends of all later ones or of all earlier ones, whichever are fewer, move with it, and they
  -- close up where nothing is left of it.
  function grains.refund(plan, when, amount)
    if not at then
      return
    end
    if expired > 0 then
      purge(plan)
    end
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
          -- The one before it is now the newest.
          newest = grain_at(older - 1)
          shorten()
          oldest = older > 0 and oldest or newest
        end
      end
    elseif one_grain(plan, when, time) then
      local own = wrapping_sub(ends, base) - cost_of(index)
      local back = math.min(amount, own)
      local gap = back == own and 1 or 0
      used = used - back
      if older - index <= index then
        move(index + gap, older, -gap, wrapping_sub, back)
        if gap == 1 then
          shorten()
        end
      else
        move(0, index, gap, wrapping_add, back)
        base, first, older = wrapping_add(base, back), (first + gap) % slots, older - gap
      end
      oldest = older > 0 and grain_at(0) or newest
    end
    save(plan)
    keep(key, plan, newest)
  end

  -- Keeps what the old window still held.
  function grains.convert(old, _, since)
    local time = effective(old, since)
    if time then
      floor = math.max(time - old.window, floor)
    else
      used = 0
    end
    return not time
  end

  function grains.stamp()
    return newest
  end

  function grains.persist(plan)
    expired = older > 0 and oldest <= floor and partition(1, floor + 1) or 0
    if expired > 0 then
      purge(plan)
    end
    save(plan)
    written = plan.text
    keep(key, plan, newest)
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
