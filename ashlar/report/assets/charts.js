// Draws the charts of the page from its block of data: lines, heat maps and bars.  A chart is as wide
// as its column and is drawn again when that changes.
'use strict';
(() => {
  const charts = JSON.parse(document.getElementById('data').textContent);
  const dashes = ['', '6 3', '2 3', '9 3 2 3', '12 4', '4 2 1 2', '1 2', '8 2 2 2 2 2'];
  const colour = i => `var(--c${i % 8})`;
  // Lines whose colours repeat differ by their dashes.
  const dash = i => dashes[(i + Math.floor(i / 8)) % dashes.length];
  const short = d3.format('.4~g'), grouped = d3.format(',.6~g'), prefixed = d3.format('.3~s');

  // Numbers at ticks: 1,600, 12k, 3M, 0.002; small ones without a prefix, which readers take for a unit.
  const tick = v => Math.abs(v) < 1 ? short(v) : Math.abs(v) < 1e4 ? grouped(v)
    : prefixed(v).replace('G', 'B');
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  function bytes(v) {
    const unit = Math.max(0, Math.min(4, Math.floor(Math.log2(Math.max(v, 1)) / 10)));
    return `${short(v / 1024 ** unit)} ${units[unit]}`;
  }
  const shown = {decimal: tick, doubling: v => v < 1e5 ? grouped(v) : prefixed(v).replace('G', 'B'), bytes};
  const plain = v => Math.abs(v) >= 1e4 ? grouped(Math.round(v)) : short(v);
  const value = (axis, v) => axis.ticks === 'bytes' ? bytes(v) : plain(v);
  const widest = texts => d3.max(texts, t => t.length) || 1;

  function frame(plot, height, left, bottom, top = 12) {
    const width = Math.max(280, plot.clientWidth);
    const svg = d3.select(plot).append('svg').attr('viewBox', `0 0 ${width} ${height}`)
      .attr('role', 'img');
    return {svg, width, height, left, right: width - 18, top, bottom: height - bottom};
  }

  const kMostBands = 3;  // of lines in a chart: more cover each other
  const symbols = [d3.symbolDiamond, d3.symbolSquare, d3.symbolTriangle];
  const symbol = i => d3.symbol().type(symbols[i % symbols.length]).size(60)();

  // Colours and dashes of lines, in their order; faint ones stand behind and take none of them.
  function lookOf(lines) {
    let next = 0;
    return lines.map(line => line.faint ? {colour: 'var(--quiet)', dash: ''}
      : {colour: colour(next), dash: dash(next++)});
  }

  // Names with samples of their lines, marks or bars (the wide ones); then the names of spots.
  function legend(plot, entries, spots = []) {
    if (entries.length < 2 && !spots.length) return;
    const list = d3.select(plot).append('ul').attr('class', 'legend');
    for (const entry of entries.length < 2 ? [] : entries) {
      const item = list.append('li'), width = entry.width > 5 ? 12 : 34;
      const sample = item.append('svg').attr('viewBox', `0 0 ${width} 10`).style('width', `${width}px`)
        .attr('aria-hidden', 'true');
      if (entry.scattered)
        sample.append('circle').attr('cx', width / 2).attr('cy', 5).attr('r', 3).attr('fill', entry.colour);
      else
        sample.append('line').attr('x1', 0).attr('x2', width).attr('y1', 5).attr('y2', 5)
          .attr('stroke', entry.colour).attr('stroke-width', entry.width).attr('stroke-dasharray', entry.dash);
      item.append('span').text(entry.name);
    }
    spots.forEach((name, i) => {
      const spot = list.append('li');
      spot.append('svg').attr('viewBox', '-7 -7 14 14').style('width', '14px').style('height', '14px')
        .attr('aria-hidden', 'true').append('path').attr('d', symbol(i)).attr('class', 'spot')
        .attr('stroke', 'var(--ink)');
      spot.append('span').text(name);
    });
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

  // Ticks of a logarithmic axis: powers of ten, or also their multiples by 2 and 5, or by 3; plain ones
  // where it spans too little.
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
    const [low, high] = s.domain();
    const powers = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
    const multiples = by => powers.flatMap(p => by.map(m => m * 10 ** p))
      .filter(v => v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9)).sort((a, b) => a - b);
    for (const by of [[1, 2, 5], [1, 3]]) {
      const found = multiples(by);
      if (found.length > 2 && found.length <= count) return found;
    }
    const found = multiples([1]);
    if (found.length < 3) return d3.scaleLinear().domain([low, high]).ticks(Math.min(count, 5));
    const step = Math.ceil(found.length / count);
    return found.filter((_, i) => i % step === 0);
  }

  // Room for the axis label and the widest tick left of the plot.
  const room = texts => 34 + 7 * widest(texts);

  function axes(f, chart, x, y, ys) {
    const all = ticks(chart.x, x, Math.max(3, Math.min(8, Math.floor((f.right - f.left) / 75))));
    f.svg.append('g').attr('class', 'grid').selectAll('line').data(ys).join('line')
      .attr('x1', f.left).attr('x2', f.right).attr('y1', y).attr('y2', y);
    f.svg.append('g').attr('transform', `translate(0,${f.bottom})`)
      .call(d3.axisBottom(x).tickValues(all).tickSizeOuter(0).tickFormat(shown[chart.x.ticks]));
    f.svg.append('g').attr('transform', `translate(${f.left},0)`)
      .call(d3.axisLeft(y).tickValues(ys).tickSizeOuter(0).tickFormat(shown[chart.y.ticks]));
    f.svg.append('text').attr('class', 'label').attr('text-anchor', 'middle')
      .attr('x', (f.left + f.right) / 2).attr('y', f.height - 6).text(chart.x.label);
    f.svg.append('text').attr('class', 'label').attr('text-anchor', 'middle')
      .attr('transform', `translate(14,${(f.top + f.bottom) / 2}) rotate(-90)`).text(chart.y.label);
  }

  // Places of the names of marks: beside their lines, in rows where they would meet; of very many none.
  function placed(marks, x, left, right) {
    const rows = [], most = 6;
    const list = marks.filter(m => m[0] >= x.domain()[0] && m[0] <= x.domain()[1]).map(([at, name]) => {
      const px = x(at), width = 7 * name.length + 6, before = px + width > right;
      return {at, name, px, before, from: before ? px - width : px, to: before ? px : px + width};
    }).sort((a, b) => a.from - b.from);
    list.forEach(m => {
      m.row = rows.findIndex(end => end < m.from);
      if (m.row < 0) m.row = rows.push(0) - 1;
      rows[m.row] = m.to;
    });
    const named = list.length <= most;
    return {list, named, height: named ? 15 * rows.length : 0};
  }

  function drawMarks(f, {list, named}, x) {
    const g = f.svg.append('g').selectAll('g').data(list).join('g');
    g.append('line').attr('class', 'at').attr('x1', m => x(m.at)).attr('x2', m => x(m.at))
      .attr('y1', m => named ? 2 + 15 * m.row : f.top).attr('y2', f.bottom)
      .append('title').text(m => m.name);
    if (named) g.append('text').attr('class', 'label').attr('y', m => 12 + 15 * m.row)
      .attr('x', m => x(m.at) + (m.before ? -4 : 4)).attr('text-anchor', m => m.before ? 'end' : 'start')
      .text(m => m.name);
  }

  function lines(plot, chart) {
    const points = chart.lines.flatMap(l => l.points);
    const ends = chart.lines.flatMap(l => (l.range || []).flat());
    const wide = plot.clientWidth > 700;
    const y = scale(chart.y, points.map(p => p[1]).concat(ends), [0, 0]);
    const ys = ticks(chart.y, y, 6);
    const left = room(ys.map(shown[chart.y.ticks]));
    const last = value(chart.x, d3.max(points, p => p[0]) || 0);
    const right = Math.max(280, plot.clientWidth) - Math.max(18, 4 * last.length);
    const x = scale(chart.x, points.map(p => p[0]), [left, right]);
    if (!chart.x.log && d3.min(points, p => p[0]) < d3.max(points, p => p[0]))
      x.domain(d3.extent(points, p => p[0]));
    const marks = placed(chart.marks || [], x, left, right);
    const f = frame(plot, (wide ? 320 : 270) + marks.height, left, 42, 12 + marks.height);
    f.right = right;
    y.range([f.bottom, f.top]);
    axes(f, chart, x, y, ys);
    drawMarks(f, marks, x);
    const drawn = p => p[1] !== null && (!chart.y.log || p[1] > 0) && (!chart.x.log || p[0] > 0);
    const path = d3.line().defined(drawn).x(p => x(p[0])).y(p => y(p[1]));
    const own = chart.lines.filter(l => l.guide_of === undefined);
    chart.lines.filter(l => l.range && own.length <= kMostBands).forEach(line => {
      const band = d3.area().defined((r, k) => drawn(line.points[k]) && r[0] > 0)
        .x((_, k) => x(line.points[k][0])).y0(r => y(r[0])).y1(r => y(r[1]));
      f.svg.append('path').datum(line.range).attr('fill', lookOf(own)[own.indexOf(line)].colour)
        .attr('opacity', 0.18).attr('d', band);
    });
    const looks = lookOf(own);
    const names = [...new Set(own.flatMap(l => (l.spots || []).map(s => s[2])))];
    chart.lines.forEach(line => {
      const guide = line.guide_of !== undefined;
      const look = looks[own.indexOf(guide ? chart.lines[line.guide_of] : line)];
      if (!line.scattered)
        f.svg.append('path').datum(line.points).attr('class', 'mark').attr('fill', 'none')
          .attr('stroke', look.colour).attr('stroke-width', line.faint ? 1 : guide ? 1.4 : 1.8)
          .attr('opacity', line.faint ? 0.55 : 1)
          .attr('stroke-dasharray', line.faint ? '' : guide ? '1.5 3' : look.dash).attr('d', path)
          .append('title').text(line.name);
      const alone = line.points.filter((p, k) => drawn(p) &&
        !(k > 0 && drawn(line.points[k - 1])) && !(k + 1 < line.points.length && drawn(line.points[k + 1])));
      const marked = line.markers || line.scattered ? line.points.filter(drawn) : alone;
      f.svg.append('g').selectAll('circle').data(marked).join('circle').attr('class', 'mark')
        .attr('cx', p => x(p[0])).attr('cy', p => y(p[1])).attr('r', 3).attr('fill', look.colour)
        .append('title').text(p => `${line.name}: ${value(chart.x, p[0])}, ${value(chart.y, p[1])}`);
      f.svg.append('g').selectAll('path').data((line.spots || []).filter(drawn)).join('path')
        .attr('class', 'mark spot').attr('d', s => symbol(names.indexOf(s[2])))
        .attr('transform', s => `translate(${x(s[0])},${y(s[1])})`).attr('stroke', look.colour)
        .append('title').text(s => `${line.name}: ${s[2]} ${value(chart.x, s[0])}`);
    });
    if (!own.some(l => l.scattered)) reader(f, chart, own, x, y, drawn);
    legend(plot, own.map((l, i) => ({name: l.name, scattered: l.scattered, width: 2.5, ...looks[i]})), names);
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

  // Black or white, whichever stands out more from the colour so far between cold and hot.
  function inkOn(share) {
    const style = getComputedStyle(document.documentElement);
    const [cold, hot] = ['--cold', '--hot'].map(n => d3.rgb(style.getPropertyValue(n).trim()));
    const linear = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
    const light = d3.sum([['r', 0.2126], ['g', 0.7152], ['b', 0.0722]],
      ([c, weight]) => weight * linear(cold[c] + share * (hot[c] - cold[c])));
    return light > 0.179 ? '#000000' : '#ffffff';
  }
  const blend = share => `color-mix(in srgb, var(--hot) ${Math.round(100 * share)}%, var(--cold))`;

  function heat(plot, chart) {
    const width = Math.max(280, plot.clientWidth);
    const left = Math.min(width * 0.4, 30 + 7 * widest(chart.rows)), right = width - 18;
    const columnWidth = (right - left) / Math.max(1, chart.columns.length);
    const cell = Math.max(4, Math.min(36, 420 / Math.max(1, chart.rows.length)));
    const f = frame(plot, 12 + cell * chart.rows.length + 76, left, 76);
    const x = d3.scaleBand(d3.range(chart.columns.length), [f.left, f.right]);
    const y = d3.scaleBand(d3.range(chart.rows.length), [f.top, f.bottom]);
    const values = chart.values.map((v, i) => ({v, r: Math.floor(i / chart.columns.length),
      c: i % chart.columns.length}));
    const [low, high] = d3.extent(values.filter(d => d.v !== null), d => d.v);
    const share = v => high > low ? Math.round(100 * (v - low) / (high - low)) / 100 : 1;
    f.svg.append('g').selectAll('rect').data(values).join('rect').attr('class', 'mark')
      .attr('x', d => x(d.c)).attr('y', d => y(d.r)).attr('width', x.bandwidth() + 0.4)
      .attr('height', y.bandwidth() + 0.4)
      .style('fill', d => d.v === null ? 'var(--plane)' : blend(share(d.v)))
      .append('title')
      .text(d => `${chart.rows[d.r]}, ${chart.columns[d.c]}: ${d.v === null ? 'not measured' : short(d.v) + ' ' + chart.unit}`);
    if (cell >= 20 && columnWidth >= 46)
      f.svg.append('g').selectAll('text').data(values.filter(d => d.v !== null)).join('text')
        .attr('class', 'cell').attr('text-anchor', 'middle').attr('x', d => x(d.c) + x.bandwidth() / 2)
        .attr('y', d => y(d.r) + y.bandwidth() / 2 + 4).style('fill', d => inkOn(share(d.v)))
        .text(d => d3.format('.3~g')(d.v));
    const every = Math.ceil((7 * widest(chart.columns) + 10) / columnWidth);
    f.svg.append('g').attr('transform', `translate(0,${f.bottom})`).call(d3.axisBottom(x)
      .tickSizeOuter(0).tickValues(d3.range(0, chart.columns.length, every)).tickFormat(i => chart.columns[i]));
    const rows = Math.ceil(14 / cell), letters = Math.floor((f.left - 30) / 7);
    f.svg.append('g').attr('transform', `translate(${f.left},0)`).call(d3.axisLeft(y).tickSizeOuter(0)
      .tickValues(d3.range(0, chart.rows.length, rows)).tickFormat(i => cut(chart.rows[i], letters)));
    f.svg.append('text').attr('class', 'label').attr('text-anchor', 'middle')
      .attr('x', (f.left + f.right) / 2).attr('y', f.bottom + 32).text(chart.x);
    f.svg.append('text').attr('class', 'label').attr('text-anchor', 'middle')
      .attr('transform', `translate(12,${(f.top + f.bottom) / 2}) rotate(-90)`)
      .text(f.bottom - f.top > 7 * chart.y.length ? chart.y : '');
    key(f, low, high, chart.unit);
  }

  // A name that fits; the whole one is in the titles of its marks.
  const cut = (name, letters) => name.length <= letters ? name : name.slice(0, Math.max(1, letters - 1)) + '…';

  // The colours from the least to the largest value.
  function key(f, low, high, unit) {
    if (low === undefined) return;
    const top = f.bottom + 46, width = Math.min(160, (f.right - f.left) / 3), steps = 16;
    const begin = f.left + 7 * short(low).length + 8;
    f.svg.append('g').selectAll('rect').data(d3.range(steps)).join('rect')
      .attr('x', i => begin + i * width / steps).attr('y', top).attr('width', width / steps + 0.4)
      .attr('height', 10).style('fill', i => blend(i / (steps - 1)));
    f.svg.append('text').attr('x', begin - 8).attr('y', top + 9).attr('text-anchor', 'end').text(short(low));
    f.svg.append('text').attr('x', begin + width + 8).attr('y', top + 9).text(`${short(high)} ${unit}`);
  }

  function bars(plot, chart) {
    const width = Math.max(280, plot.clientWidth);
    const left = Math.min(width * 0.42, 24 + 7 * widest(chart.categories));
    const letters = Math.floor((left - 14) / 6.4);
    const f = frame(plot, 12 + 26 * chart.categories.length + 42, left, 42);
    const y = d3.scaleBand(d3.range(chart.categories.length), [f.top, f.bottom]).padding(0.2);
    const totals = chart.categories.map((_, i) => d3.sum(chart.series, s => s.values[i] || 0));
    const x = d3.scaleLinear([0, d3.max(totals) || 1], [f.left, f.right]).nice();
    f.svg.append('g').attr('transform', `translate(0,${f.bottom})`)
      .call(d3.axisBottom(x).ticks(Math.min(8, Math.floor((f.right - f.left) / 60))).tickSizeOuter(0).tickFormat(tick));
    f.svg.append('g').attr('transform', `translate(${f.left},0)`)
      .call(d3.axisLeft(y).tickSizeOuter(0).tickFormat(i => cut(chart.categories[i], letters)))
      .selectAll('.tick').append('title').text(i => chart.categories[i]);
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
    legend(plot, chart.series.map((s, i) => ({name: s.name, width: 10, colour: fill(s.name, i), dash: ''})));
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
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => figures.forEach(draw));
})();
