/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/play/plot.h"

#include <math.h>

#define WIDTH  1000
#define HEIGHT 600
#define POINTS 200 /* Points of a curve. */

/* Corner and size of a drawing area. */
struct box {
	double x, y, w, h;
};

static const char *const colours[] = {"#0b6fa4", "#d9480f", "#2b8a3e", "#862e9c", "#c92a2a", "#5f3dc4",
	"#e67700", "#495057"};

static const char *case_colour(size_t i)
{
	return colours[i % CGN_COUNT(colours)];
}

static void put_escaped(struct cgn_buf *out, const char *text)
{
	for (; *text != '\0'; text++) {
		switch (*text) {
		case '<':
			cgn_buf_putz(out, "&lt;");
			break;
		case '&':
			cgn_buf_putz(out, "&amp;");
			break;
		default:
			cgn_buf_char(out, (unsigned char)*text < 0x20 ? ' ' : *text);
		}
	}
}

static void put_text(struct cgn_buf *out, double x, double y, const char *anchor, unsigned size,
	const char *text)
{
	cgn_buf_fmt(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%u\">", x, y, anchor,
		size);
	put_escaped(out, text);
	cgn_buf_putz(out, "</text>\n");
}

static void put_line(struct cgn_buf *out, double x1, double y1, double x2, double y2, const char *style)
{
	cgn_buf_fmt(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2,
		style);
}

#define GRID "stroke=\"#dee2e6\""
#define AXIS "stroke=\"#495057\""

/* ---- the distribution ---- */

/* Find the powers of ten that enclose all values. */
static void find_decades(const struct plot_case *cases, size_t n, int *from, int *to)
{
	double least = 1e300, most = 0;
	for (size_t i = 0; i < n; i++) {
		double a = samples_ms(cases[i].ttft, 0), b = samples_ms(cases[i].ttft, 1);
		least = samples_count(cases[i].ttft) > 0 && a < least ? a : least;
		most = b > most ? b : most;
	}
	*from = most > 0 && least > 0 ? (int)floor(log10(least)) : 0;
	*to = most > 0 ? (int)ceil(log10(most)) : 3;
	if (*to <= *from)
		*to = *from + 1;
}

static void put_curve(struct cgn_buf *out, struct box b, int from, int to, const struct plot_case *c,
	const char *stroke)
{
	if (samples_count(c->ttft) == 0 || c->ttft->lost > 0)
		return;
	cgn_buf_fmt(out, "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"%s\" points=\"", stroke);
	for (int i = 0; i <= POINTS; i++) {
		double q = (double)i / POINTS, ms = samples_ms(c->ttft, q),
		       part = ms > 0 ? (log10(ms) - from) / (to - from) : 0;
		cgn_buf_fmt(out, "%.1f,%.1f ", b.x + b.w * (part > 0 ? part : 0), b.y + b.h * (1 - q));
	}
	cgn_buf_putz(out, "\"/>\n");
}

static void put_cdf_axes(struct cgn_buf *out, struct box b, int from, int to)
{
	char label[32];
	for (int i = 0; i <= 10; i += 2) {
		double y = b.y + b.h * (1 - i / 10.0);
		put_line(out, b.x, y, b.x + b.w, y, i == 0 ? AXIS : GRID);
		(void)snprintf(label, sizeof label, "%d %%", i * 10);
		put_text(out, b.x - 8, y + 4, "end", 12, label);
	}
	for (int d = from; d <= to; d++) {
		double x = b.x + b.w * (d - from) / (to - from);
		put_line(out, x, b.y, x, b.y + b.h, d == from ? AXIS : GRID);
		(void)snprintf(label, sizeof label, "%g ms", pow(10, d));
		put_text(out, x, b.y + b.h + 18, "middle", 12, label);
	}
	put_text(out, b.x + b.w / 2, b.y + b.h + 38, "middle", 13, "time to first token");
	put_text(out, b.x, b.y - 12, "start", 14, "Share of requests with a first token by then");
}

static void put_legend(struct cgn_buf *out, struct box b, const struct plot_case *cases, size_t n)
{
	double h = 20.0 * (double)n + 10;
	cgn_buf_fmt(out,
		"<rect x=\"%.1f\" y=\"%.1f\" width=\"170\" height=\"%.1f\" fill=\"#ffffff\" fill-opacity=\"0.9\" stroke=\"#dee2e6\"/>\n",
		b.x + b.w - 180, b.y + b.h - h - 10, h);
	for (size_t i = 0; i < n; i++) {
		double y = b.y + b.h - h + 6 + 20.0 * (double)i;
		cgn_buf_fmt(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"4\" fill=\"%s\"/>\n",
			b.x + b.w - 170, y, case_colour(i));
		put_text(out, b.x + b.w - 148, y + 6, "start", 13, cases[i].name);
	}
}

static void put_cdf(struct cgn_buf *out, struct box b, const struct plot_case *cases, size_t n)
{
	int from, to;
	find_decades(cases, n, &from, &to);
	put_cdf_axes(out, b, from, to);
	for (size_t i = 0; i < n; i++)
		put_curve(out, b, from, to, &cases[i], case_colour(i));
	put_legend(out, b, cases, n);
}

/* ---- bars ---- */

struct bars {
	const char *title, *mark_text;
	bool percent;
	double mark; /* Value of a horizontal line. */
	double top;
};

static void put_bar(struct cgn_buf *out, struct box b, const struct bars *k, size_t i, size_t n, double v)
{
	double step = b.w / (double)n, h = b.h * v / k->top, x = b.x + step * (double)i + step * 0.15;
	char label[32];
	cgn_buf_fmt(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
		b.y + b.h - h, step * 0.7, h, case_colour(i));
	(void)snprintf(label, sizeof label, k->percent ? "%.1f" : "%.2f", k->percent ? v * 100 : v);
	put_text(out, x + step * 0.35, b.y + b.h - h - 5, "middle", 11, label);
}

static void put_bars_frame(struct cgn_buf *out, struct box b, const struct bars *k)
{
	double y = b.y + b.h * (1 - k->mark / k->top);
	put_text(out, b.x, b.y - 12, "start", 14, k->title);
	put_line(out, b.x, b.y + b.h, b.x + b.w, b.y + b.h, AXIS);
	put_line(out, b.x, b.y, b.x, b.y + b.h, AXIS);
	put_line(out, b.x, y, b.x + b.w, y, "stroke=\"#212529\" stroke-dasharray=\"5 4\"");
	put_text(out, b.x + b.w + 4, y + 4, "start", 11, k->mark_text);
}

static double greatest_value(const struct plot_case *cases, size_t n, bool hits)
{
	double top = 0;
	for (size_t i = 0; i < n; i++) {
		double v = hits ? cases[i].hit_ratio : cases[i].imbalance;
		top = v > top ? v : top;
	}
	return top;
}

void plot_svg(const char *title, const struct plot_case *cases, size_t n, double ideal, struct cgn_buf *out)
{
	const struct box cdf = {70, 80, 480, 440}, hits = {620, 80, 310, 180}, even = {620, 330, 310, 190};
	double top = greatest_value(cases, n, true);
	struct bars h = {"Prompt blocks found in cache, %", "ideal", true, ideal,
		(top > ideal ? top : ideal) * 1.1 + 1e-9};
	struct bars e = {"Busiest node over the mean, by work", "even", false, 1,
		greatest_value(cases, n, false) * 1.1 + 1e-9};
	cgn_buf_fmt(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" fill=\"#212529\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
		WIDTH, HEIGHT, WIDTH, HEIGHT);
	put_text(out, 30, 34, "start", 17, title);
	put_cdf(out, cdf, cases, n);
	put_bars_frame(out, hits, &h);
	put_bars_frame(out, even, &e);
	for (size_t i = 0; i < n; i++) {
		put_bar(out, hits, &h, i, n, cases[i].hit_ratio);
		put_bar(out, even, &e, i, n, cases[i].imbalance);
	}
	cgn_buf_putz(out, "</svg>\n");
}
