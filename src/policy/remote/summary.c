/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/remote/summary.h"

#define MAGIC   0x534e4743U /* "CGNS" */
#define VERSION 1U

/* ---- writing ---- */

static void load_put(const struct remote_load *l, struct cgn_buf *out)
{
	CGN_MUST(l->name.n <= REMOTE_NAME);
	cgn_put_u8(out, (uint8_t)l->name.n);
	cgn_buf_str(out, l->name);
	cgn_put_u32(out, l->nodes);
	cgn_put_u32(out, l->inflight);
	cgn_put_u32(out, l->room);
	cgn_put_u32(out, l->waiting);
	cgn_put_u32(out, l->wait_us);
	cgn_put_u32(out, l->prefill_ns);
	cgn_put_u64(out, l->input);
	cgn_put_u64(out, l->output);
	cgn_put_u64(out, l->prefill_uj);
}

void remote_summary_put(const struct remote_summary *s, const struct remote_set *whole, struct cgn_str sets,
	struct cgn_buf *out)
{
	cgn_put_u32(out, MAGIC);
	cgn_put_u8(out, VERSION);
	cgn_put_u8(out, (uint8_t)s->shift);
	cgn_put_u16(out, (uint16_t)s->n_models);
	cgn_put_u64(out, s->generation);
	cgn_put_u64(out, s->base);
	cgn_put_u64(out, s->sum);
	cgn_put_u32(out, s->blocks);
	cgn_put_u16(out, (uint16_t)(whole != NULL ? 1 : s->base != 0 ? 2 * (s->generation - s->base) : 0));
	for (size_t i = 0; i < s->n_models; i++)
		load_put(&s->models[i], out);
	if (whole != NULL)
		remote_set_put(whole, out);
	else
		cgn_buf_str(out, sets);
}

/* ---- reading ---- */

static bool name_is_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] >= 0 && s.p[i] < ' ')
			return false;
	return s.n > 0;
}

static bool load_get(struct cgn_cursor *c, struct remote_load *l)
{
	l->name = cgn_cursor_str(c, cgn_cursor_u8(c));
	l->nodes = cgn_cursor_u32(c);
	l->inflight = cgn_cursor_u32(c);
	l->room = cgn_cursor_u32(c);
	l->waiting = cgn_cursor_u32(c);
	l->wait_us = cgn_cursor_u32(c);
	l->prefill_ns = cgn_cursor_u32(c);
	l->input = cgn_cursor_u64(c);
	l->output = cgn_cursor_u64(c);
	l->prefill_uj = cgn_cursor_u64(c);
	return !c->bad && name_is_ok(l->name);
}

static CGN_RC head_get(struct cgn_cursor *c, struct remote_summary *out, unsigned *n_sets,
	struct cgn_err *err)
{
	uint32_t magic = cgn_cursor_u32(c);
	unsigned version = cgn_cursor_u8(c);
	if (magic != MAGIC)
		return CGN_FAIL(err, INVALID, "summary: these bytes are no summary");
	if (version != VERSION)
		return CGN_FAIL(err, INVALID, "summary: it is of version %u, this one reads %u", version,
			VERSION);
	out->shift = cgn_cursor_u8(c);
	out->n_models = cgn_cursor_u16(c);
	out->generation = cgn_cursor_u64(c);
	out->base = cgn_cursor_u64(c);
	out->sum = cgn_cursor_u64(c);
	out->blocks = cgn_cursor_u32(c);
	*n_sets = cgn_cursor_u16(c);
	if (c->bad || out->shift > REMOTE_SHIFT || out->n_models > REMOTE_MODELS ||
		out->blocks > REMOTE_BLOCKS)
		return CGN_FAIL(err, INVALID, "summary: its head has %zu models, %u blocks and the shift %u",
			out->n_models, out->blocks, out->shift);
	for (size_t i = 0; i < out->n_models; i++)
		if (!load_get(c, &out->models[i]))
			return CGN_FAIL(err, INVALID, "summary: its model %zu is not readable", i);
	return CGN_OK;
}

/* Are the sets what is to follow this head? */
static bool sets_follow(const struct remote_summary *s, const struct remote_known *known, unsigned n_sets)
{
	if (s->generation == 0) /* Nothing is known there yet. */
		return s->base == 0 && n_sets == 0 && s->blocks == 0 && s->sum == 0;
	if (s->base == 0)
		return n_sets == 1;
	return known->set != NULL && s->base == known->generation && s->shift == known->shift &&
		s->generation >= s->base && s->generation - s->base <= REMOTE_DELTAS &&
		n_sets == 2 * (s->generation - s->base);
}

static CGN_RC change_get(struct cgn_cursor *c, struct remote_set **set, struct cgn_err *err)
{
	CGN_ON_EXIT(remote_set_unref) struct remote_set *removed = NULL;
	CGN_ON_EXIT(remote_set_unref) struct remote_set *added = NULL;
	CGN_TRY(remote_set_get(c, &removed, err));
	CGN_TRY(remote_set_get(c, &added, err));
	struct remote_set *next = remote_set_change(*set, removed, added);
	if (next == NULL)
		return CGN_FAIL(err, NO_MEMORY,
			"summary: its changes make more than %u blocks, or there is no memory",
			REMOTE_BLOCKS);
	remote_set_unref(set);
	*set = next;
	return CGN_OK;
}

static CGN_RC sets_get(struct cgn_cursor *c, const struct remote_known *known, unsigned n_sets,
	struct remote_set **set, struct cgn_err *err)
{
	struct remote_draft nothing = {0};
	if (n_sets == 1)
		return remote_set_get(c, set, err);
	*set = known->set;
	if (*set != NULL)
		remote_set_ref(*set);
	else if ((*set = remote_draft_finish(&nothing)) == NULL)
		return CGN_FAIL(err, NO_MEMORY, "summary: out of memory");
	for (unsigned i = 0; i < n_sets; i += 2)
		CGN_TRY(change_get(c, set, err));
	return CGN_OK;
}

CGN_RC remote_summary_get(struct cgn_str bytes, const struct remote_known *known, struct remote_summary *out,
	struct remote_set **now, struct cgn_err *err)
{
	CGN_ON_EXIT(remote_set_unref) struct remote_set *set = NULL;
	struct cgn_cursor c = cgn_cursor_of(bytes);
	unsigned n_sets = 0;
	CGN_TRY(head_get(&c, out, &n_sets, err));
	if (!sets_follow(out, known, n_sets))
		return CGN_FAIL(err, INVALID,
			"summary: %u sets of generation %llu follow for %llu, and %llu is known", n_sets,
			(unsigned long long)out->generation, (unsigned long long)out->base,
			(unsigned long long)known->generation);
	const struct remote_known nothing = {0};
	CGN_TRY(sets_get(&c, out->base != 0 ? known : &nothing, n_sets, &set, err));
	if (!cgn_cursor_end(&c))
		return CGN_FAIL(err, INVALID, "summary: bytes follow its end");
	if (set->sum != out->sum || set->n != out->blocks)
		return CGN_FAIL(err, CONFLICT,
			"summary: %u blocks of generation %llu, and the other side has %u", set->n,
			(unsigned long long)out->generation, out->blocks);
	*now = set;
	set = NULL;
	return CGN_OK;
}
