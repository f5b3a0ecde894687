/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/answer/cascade/known.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MILLION 1000000

bool calibration_known_has(const struct calibration_known *k, unsigned which, uint64_t mark)
{
	unsigned n = k->n_marks[which];
	for (unsigned i = 0; i < n; i++)
		if (k->marks[which][i] == mark)
			return true;
	return n == CALIBRATION_MARKS;
}

void calibration_known_mark(struct calibration_known *k, unsigned which, uint64_t mark)
{
	if (!calibration_known_has(k, which, mark))
		k->marks[which][k->n_marks[which]++] = mark;
}

void calibration_known_forget(struct calibration_known *k)
{
	k->calibration = (struct calibration){.n = 0};
	k->n_marks[0] = k->n_marks[1] = 0;
	k->same = k->different = 0;
}

/* ---- lines ---- */

static long share_millionths(float share)
{
	return lround(fmin(fmax((double)share, 0), 1) * MILLION);
}

static void compared_put(const struct calibration_pair *p, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "compared %ld ", share_millionths(p->doubt));
	if (p->told < 0)
		cgn_buf_putz(out, "-");
	else
		cgn_buf_fmt(out, "%ld", share_millionths(p->told));
	cgn_buf_fmt(out, " %d\n", p->wrong);
}

void calibration_known_put(const struct calibration_known *k, struct cgn_buf *out)
{
	const struct calibration *c = &k->calibration;
	if (strchr(k->small, '\n') != NULL || strchr(k->large, '\n') != NULL)
		return;
	cgn_buf_fmt(out, "pair %" PRIu64 " %" PRIu64 " %" PRIu64 "\nsmall %s\nlarge %s\n", k->basis, k->same,
		k->different, k->small, k->large);
	for (unsigned which = 0; which < 2; which++)
		for (unsigned i = 0; i < k->n_marks[which]; i++)
			cgn_buf_fmt(out, "engine %u %" PRIu64 "\n", which, k->marks[which][i]);
	if (c->state == CALIBRATION_DRIFTED)
		cgn_buf_putz(out, "drifted\n");
	for (uint32_t i = 0; i < c->n; i++)
		compared_put(&c->pairs[(c->next + CALIBRATION_PAIRS - c->n + i) % CALIBRATION_PAIRS], out);
}

/* Take a share of 0 to 1 in millionths. */
static bool share_take(struct cgn_str word, float *out)
{
	uint64_t n = 0;
	if (!cgn_str_u64(word, &n) || n > MILLION)
		return false;
	*out = (float)((double)n / MILLION);
	return true;
}

static bool compared_take(struct calibration *c, struct cgn_str rest)
{
	struct calibration_pair p = {.told = -1};
	struct cgn_str doubt = cgn_str_split(&rest, ' '), told = cgn_str_split(&rest, ' ');
	p.wrong = cgn_str_is(rest, "1");
	return share_take(doubt, &p.doubt) && (cgn_str_is(told, "-") || share_take(told, &p.told)) &&
		(p.wrong || cgn_str_is(rest, "0")) && calibration_remember(c, p);
}

static bool mark_take(struct calibration_known *k, struct cgn_str rest)
{
	struct cgn_str word = cgn_str_split(&rest, ' ');
	unsigned which = cgn_str_is(word, "1");
	if ((which == 0 && !cgn_str_is(word, "0")) || k->n_marks[which] == CALIBRATION_MARKS)
		return false;
	return cgn_str_u64(rest, &k->marks[which][k->n_marks[which]++]);
}

static bool name_take(char name[CALIBRATION_NAME_MAX], struct cgn_str rest)
{
	return name[0] == '\0' && rest.n > 0 && memchr(rest.p, '\0', rest.n) == NULL &&
		cgn_str_copyz(name, CALIBRATION_NAME_MAX, rest);
}

static bool line_take(struct calibration_known *k, struct cgn_str line)
{
	struct cgn_str rest = line, word = cgn_str_split(&rest, ' ');
	if (cgn_str_is(word, "compared"))
		return compared_take(&k->calibration, rest);
	if (cgn_str_is(word, "small"))
		return name_take(k->small, rest);
	if (cgn_str_is(word, "large"))
		return name_take(k->large, rest);
	if (cgn_str_is(word, "engine"))
		return mark_take(k, rest);
	if (!cgn_str_is(line, "drifted") || k->calibration.n > 0)
		return false;
	k->calibration.state = CALIBRATION_DRIFTED;
	return true;
}

static bool head_take(struct calibration_known *k, struct cgn_str line)
{
	struct cgn_str rest = line;
	return cgn_str_is(cgn_str_split(&rest, ' '), "pair") &&
		cgn_str_u64(cgn_str_split(&rest, ' '), &k->basis) &&
		cgn_str_u64(cgn_str_split(&rest, ' '), &k->same) && cgn_str_u64(rest, &k->different);
}

static CGN_RC line_refuse(struct cgn_str line, struct cgn_err *err)
{
	return CGN_FAIL(err, INVALID, "no line of a calibration: %.*s", (int)(line.n < 60 ? line.n : 60),
		line.p);
}

CGN_RC calibration_known_take(struct cgn_str *lines, struct calibration_known *out, struct cgn_err *err)
{
	struct cgn_str line = cgn_str_split(lines, '\n');
	*out = (struct calibration_known){.basis = 0};
	if (!head_take(out, line))
		return line_refuse(line, err);
	while (lines->n > 0 && !cgn_str_starts(*lines, "pair ")) {
		line = cgn_str_split(lines, '\n');
		if (!line_take(out, line))
			return line_refuse(line, err);
	}
	if (out->small[0] == '\0' || out->large[0] == '\0')
		return CGN_FAIL(err, INVALID, "a calibration does not name both models");
	calibration_recall(&out->calibration);
	return CGN_OK;
}
