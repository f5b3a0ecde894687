/* SPDX-License-Identifier: Apache-2.0 */
/* table: aligned columns, or a JSON array of objects. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl.h"

bool ctl_is_terminal(int fd)
{
	return isatty(fd) == 1;
}

CGN_RC ctl_print(struct cgn_buf *b, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	if (b->bad)
		rc = CGN_FAIL(err, NO_MEMORY, "out of memory");
	else if ((b->n > 0 && fwrite(b->p, 1, b->n, stdout) != b->n) || fflush(stdout) != 0)
		rc = CGN_FAIL(err, STORAGE, "cannot write to standard output: %s", strerror(errno));
	cgn_buf_fini(b);
	return rc;
}

void ctl_table_column(struct ctl_table *t, const char *header, bool is_number)
{
	CGN_MUST(t->columns < CTL_MAX_COLUMNS && t->cells == 0);
	t->is_number[t->columns] = is_number;
	t->header[t->columns++] = header;
}

void ctl_table_cell(struct ctl_table *t, const char *fmt, ...)
{
	char cell[1024];
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(cell, sizeof cell, fmt, ap);
	va_end(ap);
	cgn_buf_add(&t->text, cell, strlen(cell) + 1);
	t->cells++;
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

static void put_padding(struct cgn_buf *out, const char *text, size_t width, bool right, bool last)
{
	size_t n = strlen(text), gap = n < width ? width - n : 0;
	for (size_t i = 0; right && i < gap; i++)
		cgn_buf_char(out, ' ');
	cgn_buf_putz(out, text);
	for (size_t i = 0; !right && !last && i < gap; i++)
		cgn_buf_char(out, ' ');
	cgn_buf_putz(out, last ? "\n" : "  ");
}

static void print_text(const struct ctl_table *t, struct cgn_buf *out)
{
	size_t width[CTL_MAX_COLUMNS];
	for (size_t c = 0; c < t->columns; c++)
		width[c] = strlen(t->header[c]);
	const char *cell = t->text.p;
	for (size_t i = 0; i < t->cells; i++, cell += strlen(cell) + 1)
		if (strlen(cell) > width[i % t->columns])
			width[i % t->columns] = strlen(cell);
	for (size_t c = 0; c < t->columns; c++)
		put_padding(out, t->header[c], width[c], t->is_number[c], c + 1 == t->columns);
	cell = t->text.p;
	for (size_t i = 0; i < t->cells; i++, cell += strlen(cell) + 1)
		put_padding(out, cell, width[i % t->columns], t->is_number[i % t->columns],
			(i + 1) % t->columns == 0);
}

CGN_RC ctl_table_print(struct ctl_table *t, bool json, struct cgn_err *err)
{
	CGN_MUST(t->columns > 0 && t->cells % t->columns == 0);
	struct cgn_buf out = {.bad = t->text.bad};
	if (json)
		print_json(t, &out);
	else
		print_text(t, &out);
	cgn_buf_fini(&t->text);
	return ctl_print(&out, err);
}
