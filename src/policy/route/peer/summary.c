/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/peer/summary.h"

#include "policy/route/peer/code.h"

#define MAGIC 0x534e4743U /* "CGNS" */

/* ---- writing ---- */

/* The u32 and the u64 of a load, in the order of the wire. */
#define LOAD_U32 6
#define LOAD_U64 3
struct load_fields {
	uint32_t *narrow[LOAD_U32];
	uint64_t *wide[LOAD_U64];
};
static struct load_fields fields_of(struct peer_load *l)
{
	return (struct load_fields){{&l->nodes, &l->inflight, &l->room, &l->waiting, &l->wait_us,
					    &l->prefill_ns},
		{&l->input, &l->output, &l->prefill_uj}};
}

static void load_put(struct peer_load l, unsigned version, struct cgn_buf *out)
{
	const struct load_fields f = fields_of(&l);
	CGN_MUST(l.name.n <= PEER_NAME);
	cgn_put_u8(out, (uint8_t)l.name.n);
	cgn_buf_str(out, l.name);
	for (size_t i = 0; i < LOAD_U32; i++)
		if (version == 1)
			cgn_put_u32(out, *f.narrow[i]);
		else
			peer_number_put(*f.narrow[i], out);
	for (size_t i = 0; i < LOAD_U64; i++)
		if (version == 1)
			cgn_put_u64(out, *f.wide[i]);
		else
			peer_number_put(*f.wide[i], out);
}

static void head_put_1(const struct peer_summary *s, bool whole, struct cgn_buf *out)
{
	cgn_put_u8(out, (uint8_t)s->shift);
	cgn_put_u16(out, (uint16_t)s->n_models);
	cgn_put_u64(out, s->generation);
	cgn_put_u64(out, s->base);
	cgn_put_u64(out, s->sum);
	cgn_put_u32(out, s->blocks);
	cgn_put_u16(out, (uint16_t)(whole ? 1 : s->base != 0 ? 2 * (s->generation - s->base) : 0));
}

static void head_put(const struct peer_summary *s, struct cgn_buf *out)
{
	cgn_put_u8(out, (uint8_t)s->shift);
	cgn_put_u8(out, (uint8_t)s->width);
	peer_number_put(s->n_models, out);
	cgn_put_u64(out, s->generation);
	peer_number_put(s->base != 0 ? s->generation - s->base + 1 : 0, out);
	cgn_put_u64(out, s->sum);
	peer_number_put(s->blocks, out);
}

void peer_summary_put(const struct peer_summary *s, const struct peer_set *whole, struct cgn_str sets,
	struct cgn_buf *out)
{
	CGN_MUST(s->version >= 1 && s->version <= PEER_VERSION);
	cgn_put_u32(out, MAGIC);
	cgn_put_u8(out, (uint8_t)s->version);
	if (s->version == 1)
		head_put_1(s, whole != NULL, out);
	else
		head_put(s, out);
	for (size_t i = 0; i < s->n_models; i++)
		load_put(s->models[i], s->version, out);
	if (whole == NULL)
		cgn_buf_str(out, sets);
	else if (s->version == 1)
		peer_set_put(whole, out);
	else
		peer_gaps_put(whole, PEER_WIDTH - s->width, UINT64_C(1) << s->width, out);
}

/* ---- reading ---- */

static bool name_is_ok(struct cgn_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] >= 0 && s.p[i] < ' ')
			return false;
	return s.n > 0;
}

static bool load_get(struct cgn_cursor *c, unsigned version, struct peer_load *l)
{
	const struct load_fields f = fields_of(l);
	l->name = cgn_cursor_str(c, cgn_cursor_u8(c));
	for (size_t i = 0; i < LOAD_U32; i++)
		*f.narrow[i] = version == 1 ? cgn_cursor_u32(c) : (uint32_t)peer_number_get(c, UINT32_MAX);
	for (size_t i = 0; i < LOAD_U64; i++)
		*f.wide[i] = version == 1 ? cgn_cursor_u64(c) : peer_number_get(c, UINT64_MAX);
	return !c->bad && name_is_ok(l->name);
}

static unsigned head_get_1(struct cgn_cursor *c, struct peer_summary *out)
{
	out->shift = cgn_cursor_u8(c);
	out->width = PEER_WIDTH;
	out->n_models = cgn_cursor_u16(c);
	out->generation = cgn_cursor_u64(c);
	out->base = cgn_cursor_u64(c);
	out->sum = cgn_cursor_u64(c);
	out->blocks = cgn_cursor_u32(c);
	return cgn_cursor_u16(c);
}

static unsigned head_get_2(struct cgn_cursor *c, struct peer_summary *out)
{
	out->shift = cgn_cursor_u8(c);
	out->width = cgn_cursor_u8(c);
	out->n_models = (size_t)peer_number_get(c, PEER_MODELS);
	out->generation = cgn_cursor_u64(c);
	const uint64_t changes = peer_number_get(c, PEER_DELTAS + 1);
	out->base = changes > 0 ? out->generation - (changes - 1) : 0;
	out->sum = cgn_cursor_u64(c);
	out->blocks = (uint32_t)peer_number_get(c, PEER_BLOCKS);
	if (changes > 0)
		return 2 * (unsigned)(changes - 1);
	return out->generation != 0 ? 1 : 0;
}

/* Read all before the models. */
static CGN_RC head_get(struct cgn_cursor *c, struct peer_summary *out, unsigned *n_sets, struct cgn_err *err)
{
	uint32_t magic = cgn_cursor_u32(c);
	out->version = cgn_cursor_u8(c);
	if (magic != MAGIC)
		return CGN_FAIL(err, INVALID, "summary: these bytes are not a summary");
	if (out->version < 1 || out->version > PEER_VERSION)
		return CGN_FAIL(err, INVALID, "summary: it is of version %u, this one reads 1 to %d",
			out->version, PEER_VERSION);
	*n_sets = out->version == 1 ? head_get_1(c, out) : head_get_2(c, out);
	if (c->bad || out->shift > PEER_SHIFT || out->n_models > PEER_MODELS || out->blocks > PEER_BLOCKS ||
		out->width < PEER_WIDTH_LEAST || out->width > PEER_WIDTH)
		return CGN_FAIL(err, INVALID,
			"summary: its head has %zu models, %u blocks, the shift %u and the width %u",
			out->n_models, out->blocks, out->shift, out->width);
	return CGN_OK;
}

static CGN_RC models_get(struct cgn_cursor *c, struct peer_summary *out, struct cgn_err *err)
{
	for (size_t i = 0; i < out->n_models; i++)
		if (!load_get(c, out->version, &out->models[i]))
			return CGN_FAIL(err, INVALID, "summary: its model %zu is not readable", i);
	return CGN_OK;
}

/* Return true if the sets are those that must follow this head. */
static bool sets_follow(const struct peer_summary *s, const struct peer_known *known, unsigned n_sets)
{
	if (s->generation == 0) /* Nothing is known there yet. */
		return s->base == 0 && n_sets == 0 && s->blocks == 0 && s->sum == 0;
	if (s->base == 0)
		return n_sets == 1;
	return known->set != NULL && s->base == known->generation && s->shift == known->shift &&
		s->width == known->set->width && s->generation >= s->base &&
		s->generation - s->base <= PEER_DELTAS && n_sets == 2 * (s->generation - s->base);
}

/* Read the code of a change of |set|. |*removed| and |*added| are the caller's, on failure too. */
static CGN_RC change_read(struct cgn_cursor *c, unsigned version, const struct peer_set *set,
	struct peer_set **removed, struct peer_set **added, struct cgn_err *err)
{
	CGN_ON_EXIT(peer_set_unref) struct peer_set *places = NULL;
	if (version == 1) {
		CGN_TRY(peer_set_get(c, removed, err));
		return peer_set_get(c, added, err);
	}
	CGN_TRY(peer_gaps_get(c, 0, set->n, &places, err));
	*removed = peer_set_at(set, places);
	if (*removed == NULL)
		return CGN_FAIL(err, NO_MEMORY, "summary: out of memory");
	return peer_gaps_get(c, PEER_WIDTH - set->width, UINT64_C(1) << set->width, added, err);
}

static CGN_RC change_get(struct cgn_cursor *c, unsigned version, struct peer_set **set, struct cgn_err *err)
{
	CGN_ON_EXIT(peer_set_unref) struct peer_set *removed = NULL;
	CGN_ON_EXIT(peer_set_unref) struct peer_set *added = NULL;
	CGN_TRY(change_read(c, version, *set, &removed, &added, err));
	struct peer_set *next = peer_set_change(*set, removed, added);
	if (next == NULL)
		return CGN_FAIL(err, NO_MEMORY,
			"summary: its changes make more than %u blocks, or there is no memory", PEER_BLOCKS);
	peer_set_unref(set);
	*set = next;
	return CGN_OK;
}

static CGN_RC whole_get(struct cgn_cursor *c, const struct peer_summary *s, struct peer_set **set,
	struct cgn_err *err)
{
	if (s->version == 1)
		return peer_set_get(c, set, err);
	return peer_gaps_get(c, PEER_WIDTH - s->width, UINT64_C(1) << s->width, set, err);
}

static CGN_RC sets_get(struct cgn_cursor *c, const struct peer_summary *s, const struct peer_known *known,
	unsigned n_sets, struct peer_set **set, struct cgn_err *err)
{
	struct peer_draft nothing = {0};
	if (n_sets == 1)
		return whole_get(c, s, set, err);
	*set = known->set;
	if (*set != NULL)
		peer_set_ref(*set);
	else if ((*set = peer_draft_finish(&nothing)) == NULL)
		return CGN_FAIL(err, NO_MEMORY, "summary: out of memory");
	for (unsigned i = 0; i < n_sets; i += 2)
		CGN_TRY(change_get(c, s->version, set, err));
	return CGN_OK;
}

size_t peer_summary_which(struct cgn_str bytes, const struct peer_known *known, size_t n,
	struct peer_summary *room)
{
	struct cgn_cursor c = cgn_cursor_of(bytes);
	unsigned n_sets = 0;
	size_t i = 0;
	if (!cgn_ok(head_get(&c, room, &n_sets, NULL)) || room->base == 0)
		return n;
	while (i < n && known[i].generation != room->base)
		i++;
	return i;
}

CGN_RC peer_summary_get(struct cgn_str bytes, const struct peer_known *known, struct peer_summary *out,
	struct peer_set **now, struct cgn_err *err)
{
	CGN_ON_EXIT(peer_set_unref) struct peer_set *set = NULL;
	struct cgn_cursor c = cgn_cursor_of(bytes);
	unsigned n_sets = 0;
	CGN_TRY(head_get(&c, out, &n_sets, err));
	CGN_TRY(models_get(&c, out, err));
	if (!sets_follow(out, known, n_sets))
		return CGN_FAIL(err, INVALID,
			"summary: %u sets of generation %llu follow for %llu, and %llu is known", n_sets,
			(unsigned long long)out->generation, (unsigned long long)out->base,
			(unsigned long long)known->generation);
	const struct peer_known nothing = {0};
	CGN_TRY(sets_get(&c, out, out->base != 0 ? known : &nothing, n_sets, &set, err));
	if (!cgn_cursor_end(&c))
		return CGN_FAIL(err, INVALID, "summary: bytes follow its end");
	if (set->sum != out->sum || set->n != out->blocks)
		return CGN_FAIL(err, CONFLICT,
			"summary: %u blocks of generation %llu, and the other side has %u", set->n,
			(unsigned long long)out->generation, out->blocks);
	*now = CGN_TAKE(&set);
	return CGN_OK;
}
