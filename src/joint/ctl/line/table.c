/* SPDX-License-Identifier: Apache-2.0 */
/* table: aligned columns, or a JSON array of objects. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sys/ioctl.h>

#include "base/core/arena.h"
#include "joint/ctl/line/line.h"

#define SHOWN_BYTES ((size_t)64 << 20)
#define LEAST_WIDTH 8 /* A column of text is not cut to less. */

bool ctl_is_terminal(int fd)
{
	return isatty(fd) == 1;
}

CGN_RC ctl_print_bytes(struct cgn_buf *b, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	if (b->bad)
		rc = CGN_FAIL(err, NO_MEMORY, "out of memory");
	else if ((b->n > 0 && fwrite(b->p, 1, b->n, stdout) != b->n) || fflush(stdout) != 0)
		rc = CGN_FAIL(err, STORAGE, "cannot write to standard output: %s", strerror(errno));
	cgn_buf_fini(b);
	return rc;
}

/* Append text that cannot change a terminal (cgn_buf_shown); line ends and tabs stay. DEL and U+0080 to U+009F may
 * stand in JSON's strings as they are, and are written as JSON does. */
static void text_put(struct cgn_buf *out, struct cgn_str text)
{
	size_t from = 0;
	for (size_t at = 0; at < text.n; at++) {
		unsigned c = (unsigned char)text.p[at],
			 next = at + 1 < text.n ? (unsigned char)text.p[at + 1] : 0;
		bool stays = c == '\n' || c == '\t', pair = c == 0xc2 && next >= 0x80 && next < 0xa0;
		if (!stays && !pair && c != 0x7f)
			continue;
		cgn_buf_shown(out, (struct cgn_str){text.p + from, at - from});
		if (stays)
			cgn_buf_char(out, (char)c);
		else
			cgn_buf_fmt(out, "\\u%04x", pair ? next : c);
		at += pair;
		from = at + 1;
	}
	if (from < text.n)
		cgn_buf_shown(out, (struct cgn_str){text.p + from, text.n - from});
}

CGN_RC ctl_print(struct cgn_buf *b, struct cgn_err *err)
{
	struct cgn_buf out = {.bad = b->bad};
	text_put(&out, cgn_buf_view(b));
	cgn_buf_fini(b);
	return ctl_print_bytes(&out, err);
}

const char *ctl_shown(const char *z)
{
	static struct cgn_arena kept = {.limit_bytes = SHOWN_BYTES};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	if (z == NULL)
		return "";
	cgn_buf_shown(&b, cgn_str_of(z));
	if (cgn_str_is(cgn_buf_view(&b), z))
		return z;
	const char *copy = b.bad ? NULL : cgn_arena_strz(&kept, cgn_buf_view(&b));
	return copy != NULL ? copy : "(too long to show)";
}

void ctl_table_column(struct ctl_table *t, const char *header, bool is_number)
{
	CGN_MUST(t->columns < CTL_MAX_COLUMNS && t->cells == 0);
	t->is_number[t->columns] = is_number;
	t->header[t->columns++] = header;
}

void ctl_table_wide_column(struct ctl_table *t, const char *header, bool is_number)
{
	ctl_table_column(t, header, is_number);
	t->is_wide[t->columns - 1] = true;
}

__attribute__((format(printf, 2, 0))) static void cell_add(struct ctl_table *t, const char *fmt, va_list ap)
{
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	char *to = cgn_buf_room(&t->text, (size_t)n + 1);
	if (to != NULL && vsnprintf(to, (size_t)n + 1, fmt, again) == n)
		cgn_buf_grew(&t->text, (size_t)n + 1);
	va_end(again);
	t->cells++;
}

void ctl_table_cell(struct ctl_table *t, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	cell_add(t, fmt, ap);
	va_end(ap);
}

bool ctl_table_next(struct ctl_table *t, const char *header, bool is_number, bool is_wide)
{
	if (t->heading ||
		(t->cells == t->columns && (t->columns == 0 || strcmp(header, t->header[0]) != 0))) {
		CGN_MUST(t->columns < CTL_MAX_COLUMNS);
		t->is_number[t->columns] = is_number;
		t->is_wide[t->columns] = is_wide;
		t->header[t->columns++] = header;
	}
	CGN_MUST(t->heading || strcmp(header, t->header[t->cells % t->columns]) == 0);
	return !t->heading;
}

void ctl_table_head(struct ctl_table *t, ctl_row *row)
{
	t->heading = true;
	row(t, NULL);
	t->heading = false;
}

static void print_json(const struct ctl_table *t, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '[');
	const char *cell = t->text.p;
	for (size_t i = 0; i < t->cells; i++, cell += strlen(cell) + 1) {
		char key[64];
		size_t n = 0;
		const char *header = t->header[i % t->columns];
		for (; header[n] != '\0' && n + 1 < sizeof key; n++)
			key[n] = header[n] == ' ' ? '_' : (char)tolower((unsigned char)header[n]);
		key[n] = '\0';
		if (i % t->columns == 0)
			json_open(&o, '{');
		json_key(&o, key);
		if (t->is_number[i % t->columns] && cell[0] != '\0')
			json_put_raw(&o, cgn_str_of(cell));
		else
			json_put_z(&o, cell);
		if (i % t->columns == t->columns - 1)
			json_close(&o, '}');
	}
	json_close(&o, ']');
	cgn_buf_char(out, '\n');
}

/* ---- as text ---- */

/* The columns that are shown, and how wide each is, in characters. */
struct layout {
	size_t column[CTL_MAX_COLUMNS], width[CTL_MAX_COLUMNS], n;
};

static size_t characters_in(const char *z)
{
	size_t n = 0;
	for (; *z != '\0'; z++)
		n += ((unsigned char)*z & 0xc0) != 0x80;
	return n;
}

/* Return the terminal's width; 0 where stdout is not a terminal. */
static size_t terminal_width(void)
{
	struct winsize size;
	if (!ctl_is_terminal(STDOUT_FILENO))
		return 0;
	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void layout_measure(const struct ctl_table *t, struct layout *l)
{
	for (size_t c = 0; c < t->columns; c++)
		if (t->wide || !t->is_wide[c])
			l->column[l->n++] = c;
	for (size_t i = 0; i < l->n; i++)
		l->width[i] = strlen(t->header[l->column[i]]);
	const char *cell = t->text.p;
	for (size_t at = 0; at < t->cells; at++, cell += strlen(cell) + 1)
		for (size_t i = 0; i < l->n; i++) {
			size_t n = l->column[i] == at % t->columns ? characters_in(ctl_shown(cell)) : 0;
			if (n > l->width[i])
				l->width[i] = n;
		}
}

/* Take characters from the widest text column until a row fits into |most|, or no column can give. */
static void layout_fit(const struct ctl_table *t, struct layout *l, size_t most)
{
	for (;;) {
		size_t total = 0, widest = l->n;
		for (size_t i = 0; i < l->n; i++) {
			total += l->width[i] + (i > 0 ? 2 : 0);
			if (!t->is_number[l->column[i]] && l->width[i] > LEAST_WIDTH &&
				(widest == l->n || l->width[i] > l->width[widest]))
				widest = i;
		}
		if (total <= most || widest == l->n)
			return;
		l->width[widest]--;
	}
}

/* Append as much of |text| as |width| has room for, with "…" in the place of the rest. */
static void put_cut(struct cgn_buf *out, const char *text, size_t width)
{
	const char *end = text;
	for (size_t n = 0; *end != '\0'; end++)
		if (((unsigned char)*end & 0xc0) != 0x80 && ++n == width)
			break;
	cgn_buf_add(out, text, (size_t)(end - text));
	cgn_buf_putz(out, "…");
}

static void put_row(const struct ctl_table *t, const struct layout *l, const char *const *cells,
	struct cgn_buf *out)
{
	for (size_t i = 0; i < l->n; i++) {
		const char *text = cells[l->column[i]];
		size_t n = characters_in(text), gap = n < l->width[i] ? l->width[i] - n : 0;
		bool right = t->is_number[l->column[i]], last = i + 1 == l->n;
		if (right)
			cgn_buf_fmt(out, "%*s", (int)gap, "");
		if (n > l->width[i])
			put_cut(out, text, l->width[i]);
		else
			cgn_buf_putz(out, text);
		if (!right && !last)
			cgn_buf_fmt(out, "%*s", (int)gap, "");
		cgn_buf_putz(out, last ? "\n" : "  ");
	}
}

static void print_text(const struct ctl_table *t, struct cgn_buf *out)
{
	struct layout l = {.n = 0};
	size_t most = terminal_width();
	layout_measure(t, &l);
	if (most > 0)
		layout_fit(t, &l, most);
	put_row(t, &l, t->header, out);
	const char *row[CTL_MAX_COLUMNS], *cell = t->text.p;
	for (size_t i = 0; i < t->cells; i++, cell += strlen(cell) + 1) {
		row[i % t->columns] = ctl_shown(cell);
		if ((i + 1) % t->columns == 0)
			put_row(t, &l, row, out);
	}
}

CGN_RC ctl_table_print(struct ctl_table *t, bool json, struct cgn_err *err)
{
	CGN_MUST(t->columns > 0 && t->cells % t->columns == 0);
	struct cgn_buf out = {.bad = t->text.bad};
	if (!out.bad) /* A bad buffer lacks cells. */
		(json ? print_json : print_text)(t, &out);
	cgn_buf_fini(&t->text);
	return ctl_print(&out, err);
}
