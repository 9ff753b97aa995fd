// Positional encodings as pure functions, by the conventions of attnjax: frequencies theta^(-2k/width), the standard
// rotation, so that (R(m) q) . (R(n) k) = q . R(n - m) k, and n = i - j for the distance of query i from key j.

// Radians per position of `pairs` pairs.
function geometric(pairs, theta, width = 2 * pairs) {
  return Array.from({ length: pairs }, (_, k) => theta ** (-2 * k / width));
}

// The two channels of pair k among 2c: (k, k + c) for "half", (2k, 2k + 1) for "interleaved".
function pairOf(k, pairs, layout) {
  return layout === "half" ? [k, k + pairs] : [2 * k, 2 * k + 1];
}

// The pairs of a row turned by these angles; channels behind the last pair pass through.
function rotate(row, angles, layout) {
  const turned = [...row];
  angles.forEach((angle, k) => {
    const [a, b] = pairOf(k, angles.length, layout);
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    turned[a] = row[a] * cos - row[b] * sin;
    turned[b] = row[a] * sin + row[b] * cos;
  });
  return turned;
}

// One row of RoPE: `frequencies` are radians per position, one for each pair.
function rope(row, position, frequencies, layout = "half") {
  return rotate(row, frequencies.map((frequency) => position * frequency), layout);
}

// sin and cos of position * theta^(-2k/width); `order` says where they stand: "interleaved" or "concatenated".
function sinusoidal(position, width, theta, order = "interleaved") {
  const angles = geometric(width / 2, theta).map((frequency) => position * frequency);
  if (order === "concatenated") return [...angles.map(Math.sin), ...angles.map(Math.cos)];
  return angles.flatMap((angle) => [Math.sin(angle), Math.cos(angle)]);
}

// 2^(-8h/N) for h = 1 .. N where N is a power of two; else those of the power P below N, then every other one of 2P.
function alibiSlopes(heads) {
  const geometricSlopes = (n) => Array.from({ length: n }, (_, h) => 2 ** (-8 * (h + 1) / n));
  const power = 2 ** Math.floor(Math.log2(heads));
  const others = geometricSlopes(2 * power).filter((_, h) => h % 2 === 0);
  return [...geometricSlopes(power), ...others.slice(0, heads - power)];
}

// -m n, or -m |n| where symmetric.
function alibiBias(slope, n, symmetric = false) {
  return -slope * (symmetric ? Math.abs(n) : n);
}
