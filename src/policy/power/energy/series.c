/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/power/energy/series.h"

#include <inttypes.h>
#include <stdlib.h>

#define MOST 1e12

static bool number_read(struct cgn_str s, double *out)
{
	char text[40], *end = NULL;
	if (s.n == 0 || !cgn_str_copyz(text, sizeof text, s))
		return false;
	*out = strtod(text, &end);
	return *end == '\0' && *out >= 0 && *out <= MOST;
}

/* Read a line. False: it is not "TIME VALUE". */
static bool line_read(struct cgn_str line, uint64_t *at, double *value)
{
	for (size_t i = 0; i < line.n; i++)
		if (line.p[i] == ' ' || line.p[i] == '\t')
			return cgn_str_u64((struct cgn_str){line.p, i}, at) &&
				number_read(cgn_str_trim((struct cgn_str){line.p + i, line.n - i}), value);
	return false;
}

CGN_RC energy_series_at(struct cgn_str text, uint64_t now_s, uint64_t max_age_s, double *out,
	struct cgn_err *err)
{
	uint64_t last = 0, begun = 0, at;
	bool any = false;
	double value, found = 0;
	for (size_t n = 1; text.p != NULL && text.n > 0; n++) {
		struct cgn_str rest = cgn_str_split(&text, '\n'),
			       line = cgn_str_trim(cgn_str_split(&rest, '#'));
		if (line.n == 0)
			continue;
		if (!line_read(line, &at, &value))
			return CGN_FAIL(err, INVALID,
				"line %zu is not \"SECONDS VALUE\", such as 1763900000 0.31", n);
		if (at < last)
			return CGN_FAIL(err, INVALID, "line %zu: %" PRIu64 " is before the line above", n,
				at);
		last = at;
		if (at > now_s)
			continue;
		any = true;
		begun = at;
		found = value;
	}
	if (!any)
		return CGN_FAIL(err, NOT_FOUND, "no value has begun yet");
	if (now_s - begun > max_age_s)
		return CGN_FAIL(err, NOT_FOUND, "the last value is %" PRIu64 " s old", now_s - begun);
	*out = found;
	return CGN_OK;
}
