-- arithmetic, version 2: exact on integers below 2^53, the twin of the helpers in mod.rs. A Lua number is a double: a product
-- can leave the exact range.

local MAX = WHOLE - 1

-- Quotient and remainder of a * b / m.
local function mul_div(a, b, m)
  local product = a * b
  if product < WHOLE then
    local rest = product % m
    return (product - rest) / m, rest
  end
  -- Long multiplication from the highest bit of a, with quotient and remainder kept apart so that nothing overflows.
  local b_rest = b % m
  local quotient, rest = a * ((b - b_rest) / m), 0
  local partial, bit = 0, 2 ^ 52
  while bit >= 1 do
    partial = partial * 2
    if rest >= m - rest then
      rest, partial = rest - (m - rest), partial + 1
    else
      rest = rest + rest
    end
    if a >= bit then
      a = a - bit
      if rest >= m - b_rest then
        rest, partial = rest - (m - b_rest), partial + 1
      else
        rest = rest + b_rest
      end
    end
    bit = bit / 2
  end
  return quotient + partial, rest
end

local function mul_div_ceil(a, b, m)
  local quotient, rest = mul_div(a, b, m)
  return rest > 0 and quotient + 1 or quotient
end

-- Sums that wrap at 2^53, for cumulative costs.
local function wrapping_add(a, b)
  return a >= WHOLE - b and a - (WHOLE - b) or a + b
end

local function wrapping_sub(a, b)
  return a >= b and a - b or a + (WHOLE - b)
end
