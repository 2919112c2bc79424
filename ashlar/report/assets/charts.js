// Draws the charts of the page from its block of data: lines, heat maps and bars.  A chart is as wide
// as its column and is drawn again when that changes.
'use strict';
(() => {
  const charts = JSON.parse(document.getElementById('data').textContent);
  const dashes = ['', '6 3', '2 3', '9 3 2 3', '12 4', '4 2 1 2', '1 2', '8 2 2 2 2 2'];
  const colour = i => `var(--c${i % 8})`;
  // Lines whose colours repeat differ by their dashes.
  const dash = i => dashes[(i + Math.floor(i / 8)) % dashes.length];
  const short = d3.format('.4~g'), prefixed = d3.format('.3~s');

  // Numbers at ticks: 12k, 3M, 0.002; small ones without a prefix, which readers take for a unit.
  const tick = v => v !== 0 && Math.abs(v) < 1 ? short(v) : prefixed(v).replace('G', 'B');
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  function bytes(v) {
    const unit = Math.max(0, Math.min(4, Math.floor(Math.log2(Math.max(v, 1)) / 10)));
    return `${short(v / 1024 ** unit)} ${units[unit]}`;
  }
  const shown = {decimal: tick, doubling: d3.format('.6~g'), bytes};
  const value = (axis, v) => axis.ticks === 'decimal' ? short(v) : shown[axis.ticks](v);

  function frame(plot, height, left, bottom) {
    const width = Math.max(280, plot.clientWidth);
    const svg = d3.select(plot).append('svg').attr('viewBox', `0 0 ${width} ${height}`)
      .attr('role', 'img');
    return {svg, width, height, left, right: width - 18, top: 12, bottom: height - bottom};
  }

  // Names with samples of their lines, or of their bars' colours.
  function legend(plot, names, solid) {
    if (names.length < 2) return;
    const list = d3.select(plot).append('ul').attr('class', 'legend');
    const item = list.selectAll('li').data(names).join('li');
    const width = solid ? 12 : 34;
    item.append('svg').attr('viewBox', `0 0 ${width} 10`).style('width', `${width}px`)
      .attr('aria-hidden', 'true').append('line')
      .attr('x1', 0).attr('x2', width).attr('y1', 5).attr('y2', 5)
      .attr('stroke-width', solid ? 10 : 2.5)
      .attr('stroke', (name, i) => solid ? fill(name, i) : colour(i))
      .attr('stroke-dasharray', (_, i) => solid ? '' : dash(i));
    item.append('span').text(d => d);
  }
  const fill = (name, i) => name === 'other' && i === 7 ? 'var(--quiet)' : colour(i);

  function scale(axis, values, range) {
    let usable = values.filter(v => v !== null && isFinite(v) && (!axis.log || v > 0));
    if (!usable.length) usable = [axis.log ? 1 : 0];
    let [low, high] = d3.extent(usable);
    if (axis.log) {
      if (low === high) { low /= 2; high *= 2; }
      return d3.scaleLog().domain([low, high]).range(range);
    }
    if (low === high) { const pad = Math.abs(low) * 0.05 || 1; low -= pad; high += pad; }
    return d3.scaleLinear().domain([low, high]).nice(6).range(range);
  }

  // Ticks of a logarithmic axis: powers of ten, or a few values where it spans less than one.
  function ticks(axis, s, count) {
    if (!axis.log) return s.ticks(count);
    if (axis.ticks !== 'decimal') {
      const [low, high] = s.domain().map(Math.log2);
      const exponents = d3.range(Math.ceil(low - 1e-9), Math.floor(high + 1e-9) + 1);
      if (exponents.length > 1) {
        const step = Math.ceil(exponents.length / count);
        return exponents.filter(e => e % step === 0).map(e => 2 ** e);
      }
    }
    const all = s.ticks(count);
    const powers = all.filter(v => Number.isInteger(Math.round(Math.log10(v) * 1e9) / 1e9));
    const chosen = powers.length >= 3 ? powers : all;
    const step = Math.ceil(chosen.length / count);
    return chosen.filter((_, i) => i % step === 0);
  }

  // Room for the axis label and the widest tick left of the plot.
  const room = texts => 34 + 7 * (d3.max(texts, t => t.length) || 1);

  function axes(f, chart, x, y, ys) {
    const xs = ticks(chart.x, x, f.width < 500 ? 4 : 8);
    f.svg.append('g').attr('class', 'grid').selectAll('line').data(ys).join('line')
      .attr('x1', f.left).attr('x2', f.right).attr('y1', y).attr('y2', y);
    f.svg.append('g').attr('transform', `translate(0,${f.bottom})`)
      .call(d3.axisBottom(x).tickValues(xs).tickFormat(shown[chart.x.ticks]));
    f.svg.append('g').attr('transform', `translate(${f.left},0)`)
      .call(d3.axisLeft(y).tickValues(ys).tickFormat(shown[chart.y.ticks]));
    f.svg.append('text').attr('class', 'label').attr('text-anchor', 'middle')
      .attr('x', (f.left + f.right) / 2).attr('y', f.height - 6).text(chart.x.label);
    f.svg.append('text').attr('class', 'label').attr('text-anchor', 'middle')
      .attr('transform', `translate(14,${(f.top + f.bottom) / 2}) rotate(-90)`).text(chart.y.label);
  }

  function lines(plot, chart) {
    const points = chart.lines.flatMap(l => l.points);
    const ends = chart.lines.flatMap(l => (l.range || []).flat());
    const y = scale(chart.y, points.map(p => p[1]).concat(ends), [0, 0]);
    const ys = ticks(chart.y, y, 6);
    const f = frame(plot, 320, room(ys.map(shown[chart.y.ticks])), 42);
    const x = scale(chart.x, points.map(p => p[0]), [f.left, f.right]);
    y.range([f.bottom, f.top]);
    if (!chart.x.log) x.domain(d3.extent(points, p => p[0]));
    axes(f, chart, x, y, ys);
    const drawn = p => p[1] !== null && (!chart.y.log || p[1] > 0) && (!chart.x.log || p[0] > 0);
    const path = d3.line().defined(drawn).x(p => x(p[0])).y(p => y(p[1]));
    const own = chart.lines.filter(l => l.guide_of === undefined);
    chart.lines.filter(l => l.range).forEach(line => {
      const band = d3.area().defined((r, k) => drawn(line.points[k]) && r[0] > 0)
        .x((_, k) => x(line.points[k][0])).y0(r => y(r[0])).y1(r => y(r[1]));
      f.svg.append('path').datum(line.range).attr('fill', colour(own.indexOf(line)))
        .attr('opacity', 0.18).attr('d', band);
    });
    chart.lines.forEach(line => {
      const guide = line.guide_of !== undefined;
      const i = own.indexOf(guide ? chart.lines[line.guide_of] : line);
      f.svg.append('path').datum(line.points).attr('class', 'mark').attr('fill', 'none')
        .attr('stroke', colour(i)).attr('stroke-width', guide ? 1 : 1.8)
        .attr('stroke-dasharray', guide ? '1 3' : dash(i)).attr('d', path)
        .append('title').text(line.name);
      const alone = line.points.filter((p, k) => drawn(p) &&
        !(k > 0 && drawn(line.points[k - 1])) && !(k + 1 < line.points.length && drawn(line.points[k + 1])));
      const marked = line.markers ? line.points.filter(drawn) : alone;
      f.svg.append('g').selectAll('circle').data(marked).join('circle').attr('class', 'mark')
        .attr('cx', p => x(p[0])).attr('cy', p => y(p[1])).attr('r', 3).attr('fill', colour(i))
        .append('title').text(p => `${line.name}: ${value(chart.x, p[0])}, ${value(chart.y, p[1])}`);
    });
    reader(f, chart, own, x, y, drawn);
    legend(plot, own.map(l => l.name), false);
  }

  // A line at the pointer with the values of the nearest points.
  function reader(f, chart, own, x, y, drawn) {
    const box = f.svg.append('g').attr('visibility', 'hidden').attr('pointer-events', 'none');
    const rule = box.append('line').attr('y1', f.top).attr('y2', f.bottom)
      .attr('stroke', 'var(--quiet)');
    const back = box.append('rect').attr('y', f.top).attr('fill', 'var(--plane)')
      .attr('opacity', 0.92);
    const text = box.append('text').attr('y', f.top + 2);
    const nearest = d3.bisector(p => p[0]).center;
    f.svg.on('pointermove', event => {
      const at = x.invert(d3.pointer(event)[0]);
      const found = own.map(l => [l, l.points.filter(drawn)]).filter(([, ps]) => ps.length)
        .map(([l, ps]) => [l.name, ps[nearest(ps, at)]]);
      if (!found.length) return;
      const px = x(found[0][1][0]), left = px < f.width / 2;
      box.attr('visibility', 'visible');
      rule.attr('x1', px).attr('x2', px);
      text.attr('text-anchor', left ? 'start' : 'end').selectAll('tspan')
        .data([`${chart.x.label} ${value(chart.x, found[0][1][0])}`,
               ...found.slice(0, 12).map(([name, p]) => `${name} ${value(chart.y, p[1])}`)])
        .join('tspan').attr('x', left ? px + 8 : px - 8).attr('dy', 14).text(d => d);
      const size = text.node().getBBox();
      back.attr('x', size.x - 4).attr('width', size.width + 8).attr('height', size.height + 6);
    }).on('pointerleave', () => box.attr('visibility', 'hidden'));
  }

  function heat(plot, chart) {
    const width = Math.max(280, plot.clientWidth);
    const longest = d3.max(chart.rows, r => r.length) || 1;
    const left = Math.min(width * 0.35, 30 + 7 * longest);
    const cell = Math.max(4, Math.min(40, 420 / Math.max(1, chart.rows.length)));
    const f = frame(plot, 12 + cell * chart.rows.length + 76, left, 76);
    const x = d3.scaleBand(d3.range(chart.columns.length), [f.left, f.right]);
    const y = d3.scaleBand(d3.range(chart.rows.length), [f.top, f.bottom]);
    const values = chart.values.map((v, i) => ({v, r: Math.floor(i / chart.columns.length),
      c: i % chart.columns.length}));
    const [low, high] = d3.extent(values.filter(d => d.v !== null), d => d.v);
    const share = v => high > low ? (v - low) / (high - low) : 1;
    f.svg.append('g').selectAll('rect').data(values).join('rect').attr('class', 'mark')
      .attr('x', d => x(d.c)).attr('y', d => y(d.r)).attr('width', x.bandwidth() + 0.4)
      .attr('height', y.bandwidth() + 0.4)
      .style('fill', d => d.v === null ? 'none'
        : `color-mix(in srgb, var(--hot) ${Math.round(100 * share(d.v))}%, var(--cold))`)
      .append('title')
      .text(d => `${chart.rows[d.r]}, ${chart.columns[d.c]}: ${d.v === null ? 'not measured' : short(d.v) + ' ' + chart.unit}`);
    const every = Math.ceil(chart.columns.length / Math.max(1, (f.right - f.left) / 60));
    f.svg.append('g').attr('transform', `translate(0,${f.bottom})`).call(d3.axisBottom(x)
      .tickValues(d3.range(0, chart.columns.length, every)).tickFormat(i => chart.columns[i]));
    const rows = Math.ceil(chart.rows.length * 14 / Math.max(14, f.bottom - f.top));
    f.svg.append('g').attr('transform', `translate(${f.left},0)`).call(d3.axisLeft(y)
      .tickValues(d3.range(0, chart.rows.length, rows)).tickFormat(i => chart.rows[i]));
    f.svg.append('text').attr('class', 'label').attr('text-anchor', 'middle')
      .attr('x', (f.left + f.right) / 2).attr('y', f.bottom + 32).text(chart.x);
    key(f, low, high, chart.unit);
  }

  // The colours from the least to the largest value.
  function key(f, low, high, unit) {
    if (low === undefined) return;
    const top = f.bottom + 46, width = Math.min(160, (f.right - f.left) / 2), steps = 16;
    f.svg.append('g').selectAll('rect').data(d3.range(steps)).join('rect')
      .attr('x', i => f.left + i * width / steps).attr('y', top).attr('width', width / steps + 0.4)
      .attr('height', 10)
      .style('fill', i => `color-mix(in srgb, var(--hot) ${100 * i / (steps - 1)}%, var(--cold))`);
    f.svg.append('text').attr('x', f.left).attr('y', top + 24).text(short(low));
    f.svg.append('text').attr('x', f.left + width).attr('y', top + 24)
      .text(`${short(high)} ${unit}`);
  }

  function bars(plot, chart) {
    const longest = d3.max(chart.categories, c => c.length) || 1;
    const width = Math.max(280, plot.clientWidth);
    const left = Math.min(width * 0.4, 24 + 7 * longest);
    const f = frame(plot, 12 + 26 * chart.categories.length + 42, left, 42);
    const y = d3.scaleBand(d3.range(chart.categories.length), [f.top, f.bottom]).padding(0.2);
    const totals = chart.categories.map((_, i) => d3.sum(chart.series, s => s.values[i] || 0));
    const x = d3.scaleLinear([0, d3.max(totals) || 1], [f.left, f.right]).nice();
    f.svg.append('g').attr('transform', `translate(0,${f.bottom})`)
      .call(d3.axisBottom(x).ticks(f.width < 500 ? 4 : 8).tickFormat(tick));
    f.svg.append('g').attr('transform', `translate(${f.left},0)`)
      .call(d3.axisLeft(y).tickFormat(i => chart.categories[i]));
    const begin = chart.categories.map(() => 0);
    chart.series.forEach((series, s) => {
      f.svg.append('g').selectAll('rect').data(series.values).join('rect').attr('class', 'mark')
        .attr('x', (v, i) => { const at = x(begin[i]); begin[i] += v || 0; return at; })
        .attr('y', (_, i) => y(i)).attr('height', y.bandwidth())
        .attr('width', v => Math.max(0, x(v || 0) - f.left)).attr('fill', fill(series.name, s))
        .append('title').text((v, i) => `${chart.categories[i]}, ${series.name}: ${short(v)} ${chart.unit}`);
    });
    f.svg.append('text').attr('class', 'label').attr('text-anchor', 'middle')
      .attr('x', (f.left + f.right) / 2).attr('y', f.height - 6).text(chart.unit);
    legend(plot, chart.series.map(s => s.name), true);
  }

  const kinds = {lines, heat, bars};
  function draw(figure) {
    const chart = charts[figure.dataset.chart], plot = figure.querySelector('.plot');
    plot.replaceChildren();
    kinds[chart.kind](plot, chart);
    plot.querySelector('svg').setAttribute('aria-label', chart.title);
  }
  const figures = document.querySelectorAll('figure[data-chart]');
  figures.forEach(draw);
  let width = document.documentElement.clientWidth;
  window.addEventListener('resize', () => {
    if (width === document.documentElement.clientWidth) return;
    width = document.documentElement.clientWidth;
    figures.forEach(draw);
  });
})();
