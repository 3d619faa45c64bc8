"""Small SVGs of lines over a number, and of bars: no library needed. Text is escaped; axes begin at zero."""

from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 40, 50
COLOURS = ("#0a6", "#c33", "#36c", "#a60", "#639")
TICKS = 5


def nice_limit(most):
    """The least of 1, 2, 2.5, 5, 10, ... times a power of ten that is not below `most`."""
    if most <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= most:
        power *= 10
    while power > most:
        power /= 10
    for factor in (1, 2, 2.5, 5, 10):
        if most <= factor * power * (1 + 1e-12):
            return factor * power
    return 10 * power


def number(value):
    return f"{value:.3g}"


def line_plot(title, x_label, y_label, series):
    """SVG text. `series`: (name, [(x, y), ...]) each, drawn in the order of x; empty ones are named only."""
    points = [point for _, line in series for point in line]
    most_x = nice_limit(max((x for x, _ in points), default=0))
    most_y = nice_limit(max((y for _, y in points), default=0))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x, y):
        return LEFT + wide * x / most_x, TOP + high * (1 - y / most_y)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             'font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{WIDTH / 2:g}" y="20" text-anchor="middle" font-size="14">{escape(title)}</text>',
             f'<text x="{WIDTH / 2:g}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>',
             f'<text x="16" y="{HEIGHT / 2:g}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2:g})">'
             f'{escape(y_label)}</text>']
    for i in range(TICKS + 1):
        x, y = place(most_x * i / TICKS, most_y * i / TICKS)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(most_y * i / TICKS)}</text>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                     f'{number(most_x * i / TICKS)}</text>')
    for i, (name, line) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        places = [place(*point) for point in sorted(line)]
        if places:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(f'<text x="{LEFT + 12}" y="{TOP + 14 + 16 * i}" fill="{colour}">{escape(name)}</text>')
    return "\n".join(parts + ["</svg>", ""])


def bar_plot(title, x_label, bars):
    """SVG text. `bars`: (name, value) from top to bottom."""
    most = nice_limit(max((value for _, value in bars), default=0))
    left, step = 150, (HEIGHT - TOP - BOTTOM) / max(len(bars), 1)
    wide = WIDTH - left - 60
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             'font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{WIDTH / 2:g}" y="20" text-anchor="middle" font-size="14">{escape(title)}</text>',
             f'<text x="{WIDTH / 2:g}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>']
    for i, (name, value) in enumerate(bars):
        y = TOP + i * step
        length = wide * value / most
        parts += [f'<rect class="bar" x="{left}" y="{y + 0.15 * step:.1f}" width="{length:.1f}" height="{0.7 * step:.1f}" '
                  f'fill="{COLOURS[0]}"/>',
                  f'<text x="{left - 8}" y="{y + step / 2 + 4:.1f}" text-anchor="end">{escape(name)}</text>',
                  f'<text x="{left + length + 6:.1f}" y="{y + step / 2 + 4:.1f}">{number(value)}</text>']
    return "\n".join(parts + ["</svg>", ""])
