/* SPDX-License-Identifier: Apache-2.0 */
/* report: the lines that deploy/rack/state.sh prints of a host's files and units. */
#include <string.h>

#include "policy/fleet/rack/rack.h"

#define SUM_BYTES 64

static unsigned unit_bit(struct cgn_str unit)
{
	for (unsigned i = 0; i < RACK_ROLES; i++)
		if (cgn_str_is(unit, rack_unit((enum rack_role)i)))
			return RACK_BIT(i);
	return 0;
}

static void unit_read(struct rack_seen *s, struct cgn_str rest)
{
	unsigned bit = unit_bit(cgn_str_split(&rest, ' '));
	if (cgn_str_is(cgn_str_split(&rest, ' '), "enabled"))
		s->enabled |= bit;
	if (cgn_str_is(rest, "active"))
		s->active |= bit;
}

static bool sum_ok(struct cgn_str sum)
{
	if (sum.n != SUM_BYTES)
		return false;
	for (size_t i = 0; i < sum.n; i++)
		if (strchr("0123456789abcdef", sum.p[i]) == NULL || sum.p[i] == '\0')
			return false;
	return true;
}

static bool file_read(struct rack_seen *s, struct cgn_str rest)
{
	struct cgn_str sum = cgn_str_split(&rest, ' ');
	if (s->n == RACK_MAX_SEEN || !sum_ok(sum) || rest.n == 0 || rest.p[0] != '/')
		return false;
	s->files[s->n++] = (struct rack_seen_file){.path = rest, .sha256 = sum};
	return true;
}

/* The bytes of the file that was named last, and a newline, follow. */
static bool text_read(struct rack_seen *s, struct cgn_str size, struct cgn_str *rest)
{
	uint64_t n;
	if (s->n == 0 || !cgn_str_u64(size, &n) || rest->n < 1 || n > rest->n - 1 || rest->p[n] != '\n')
		return false;
	s->files[s->n - 1].text = (struct cgn_str){rest->p, (size_t)n};
	*rest = (struct cgn_str){rest->p + n + 1, rest->n - (size_t)n - 1};
	return true;
}

static void data_note(struct rack_seen *s, struct cgn_str cluster)
{
	if (s->n_etcd_data < RACK_MAX_DATA)
		s->etcd_data[s->n_etcd_data++] = cluster;
}

static bool line_read(struct rack_seen *s, struct cgn_str line, struct cgn_str *rest)
{
	struct cgn_str word = cgn_str_split(&line, ' ');
	if (cgn_str_is(word, "file"))
		return file_read(s, line);
	if (cgn_str_is(word, "text"))
		return text_read(s, line, rest);
	if (cgn_str_is(word, "unit"))
		unit_read(s, line);
	else if (cgn_str_is(word, "pending"))
		s->pending |= unit_bit(line);
	else if (cgn_str_is(word, "interrupted"))
		s->interrupted = true;
	else if (cgn_str_is(word, "systemd"))
		s->systemd = cgn_str_is(line, "yes");
	else if (cgn_str_is(word, "etcd-data"))
		data_note(s, line);
	else if (cgn_str_is(word, "etcd"))
		s->etcd = cgn_str_is(line, "yes");
	else
		return false;
	return true;
}

CGN_RC rack_report_read(struct cgn_str report, struct rack_seen *out, struct cgn_err *err)
{
	memset(out, 0, sizeof *out);
	while (report.n > 0) {
		struct cgn_str line = cgn_str_split(&report, '\n');
		if (cgn_str_is(line, "end") && report.n == 0)
			return CGN_OK;
		if (!line_read(out, line, &report)) {
			CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf shown = {0};
			cgn_buf_shown(&shown, (struct cgn_str){line.p, line.n < 80 ? line.n : 80});
			return CGN_FAIL(err, INVALID, "the host's answer has a line that is not known: %s",
				cgn_buf_z(&shown));
		}
	}
	return CGN_FAIL(err, INVALID, "the host's answer is not complete");
}

const struct rack_seen_file *rack_seen_find(const struct rack_seen *s, const char *path)
{
	for (size_t i = 0; i < s->n; i++)
		if (cgn_str_is(s->files[i].path, path))
			return &s->files[i];
	return NULL;
}
