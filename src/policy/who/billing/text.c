/* SPDX-License-Identifier: Apache-2.0 */
/* text: a day as a file. A line has the hour, tenant, key, model and the amounts; bytes of names other than
 * visible ASCII are %-escaped. */
#include "base/codec/codec.h"
#include "base/seal/seal.h"
#include "policy/who/billing/billing_priv.h"

#define TEXT_KIND   "cognitora-usage"
#define TEXT_FORMAT 1
#define AMOUNTS     7

static void name_write(struct cgn_str s, struct cgn_buf *out)
{
	cgn_buf_char(out, ' ');
	for (size_t i = 0; i < s.n; i++) {
		unsigned char c = (unsigned char)s.p[i];
		if (c <= ' ' || c > '~' || c == '%')
			cgn_buf_fmt(out, "%%%02x", c);
		else
			cgn_buf_char(out, (char)c);
	}
}

static void row_write(uint64_t hour, const struct billing_row *r, struct cgn_buf *out)
{
	const uint64_t v[AMOUNTS] = {r->sum.requests, r->sum.estimated, r->sum.input, r->sum.cached,
		r->sum.output, r->sum.money, r->sum.joules};
	cgn_buf_u64(out, hour);
	name_write(r->names.tenant, out);
	name_write(r->names.key, out);
	name_write(r->names.model, out);
	for (size_t i = 0; i < AMOUNTS; i++) {
		cgn_buf_char(out, ' ');
		cgn_buf_u64(out, v[i]);
	}
	cgn_buf_char(out, '\n');
}

void billing_write_day(const struct billing *l, uint64_t day, struct cgn_buf *out)
{
	seal_begin(out, TEXT_KIND, TEXT_FORMAT);
	for (size_t i = billing_at(l, day * 24); i < l->n && l->hours[i].hour < (day + 1) * 24; i++)
		for (size_t k = 0; k < l->hours[i].n; k++)
			row_write(l->hours[i].hour, &l->hours[i].rows[k], out);
	seal_end(out);
}

static bool name_read(struct cgn_str *line, char room[3 * BILLING_NAME], struct cgn_str *out)
{
	struct cgn_str text = cgn_str_split(line, ' ');
	if (text.n == 0 || text.n > (size_t)3 * BILLING_NAME)
		return false;
	*out = (struct cgn_str){room, percent_get(room, text)};
	return out->n > 0 && out->n <= BILLING_NAME;
}

bool billing_read_line(struct cgn_str line, struct billing_line *out)
{
	uint64_t v[AMOUNTS];
	if (!cgn_str_u64(cgn_str_split(&line, ' '), &out->hour) ||
		!name_read(&line, out->rooms[0], &out->names.tenant) ||
		!name_read(&line, out->rooms[1], &out->names.key) ||
		!name_read(&line, out->rooms[2], &out->names.model))
		return false;
	for (size_t i = 0; i < AMOUNTS; i++)
		if (!cgn_str_u64(cgn_str_split(&line, ' '), &v[i]))
			return false;
	out->amounts = (struct billing_amounts){v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
	return line.n == 0;
}

static bool row_read(struct billing *l, uint64_t day, struct cgn_str line)
{
	struct billing_line row;
	if (!billing_read_line(line, &row) || row.hour / 24 != day)
		return false;
	billing_add(l, row.hour, &row.names, &row.amounts);
	return true;
}

void billing_write_row(uint64_t hour, const struct billing_names *names,
	const struct billing_amounts *amounts, struct cgn_buf *out)
{
	const struct billing_row row = {*names, *amounts};
	row_write(hour, &row, out);
}

CGN_RC billing_read_day(struct billing *l, uint64_t day, struct cgn_str text, struct cgn_err *err)
{
	struct cgn_str lines;
	unsigned n = 1;
	CGN_TRY(seal_open(text, TEXT_KIND, TEXT_FORMAT, &lines, err));
	while (lines.n > 0) {
		n++;
		if (!row_read(l, day, cgn_str_split(&lines, '\n')))
			return CGN_FAIL(err, INVALID, "it is damaged: line %u is not a row of the day", n);
	}
	return CGN_OK;
}
