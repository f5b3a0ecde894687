/* SPDX-License-Identifier: Apache-2.0 */
/* read: reads the payload in one pass. Each field has one function, used for fields by position and by
 * name. */
#include "policy/kv/kvevent/kvevent.h"

enum field {
	F_HASHES,
	F_PARENT,
	F_TOKENS,
	F_BLOCK_SIZE,
	F_LORA_ID,
	F_MEDIUM,
	F_LORA_NAME,
	F_EXTRA_KEYS,
	F_GROUP,
	F_KIND,
	F_WINDOW,
	F_LOCALITY,
	F_METADATA,
	F_SALT,
	F_TYPE,
	F_UNKNOWN,
};

static const char *const field_names[] = {"block_hashes", "parent_block_hash", "token_ids", "block_size",
	"lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
	"kv_cache_spec_sliding_window", "locality", "metadata", "cache_salt", "type"};
static const char *const type_names[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};
/* Fields by position, behind the tag. */
static const uint8_t stored_places[] = {F_HASHES, F_PARENT, F_TOKENS, F_BLOCK_SIZE, F_LORA_ID, F_MEDIUM,
	F_LORA_NAME, F_EXTRA_KEYS, F_GROUP, F_KIND, F_WINDOW, F_LOCALITY};
static const uint8_t removed_places[] = {F_HASHES, F_MEDIUM, F_GROUP, F_LOCALITY};

struct reading {
	struct msgpack_in in;
	struct kvevent_batch *batch;
	struct kvevent e;
	struct cgn_str medium, locality, kind;
	bool has_window;
	unsigned seen; /* 1 << field */
};

/* ---- lists ---- */

static uint64_t take_hash(struct msgpack_in *in)
{
	if (msgpack_peek(in) != MSGPACK_BIN)
		return msgpack_get_bits(in);
	struct cgn_str s = msgpack_get_bin(in);
	uint64_t v = 0;
	if (s.n == 0)
		msgpack_fault(in, "a hash of no bytes");
	for (size_t i = s.n > 8 ? s.n - 8 : 0; i < s.n; i++)
		v = v << 8 | (uint8_t)s.p[i];
	return v;
}

bool kvevent_hash_next(struct kvevent_list *l, uint64_t *out)
{
	if (l->n == 0)
		return false;
	l->n--;
	*out = take_hash(&l->at);
	return true;
}

bool kvevent_token_next(struct kvevent_list *l, uint32_t *out)
{
	if (l->n == 0)
		return false;
	l->n--;
	*out = msgpack_get_u32(&l->at);
	return true;
}

/* Remember the position of the list, and step over the list while checking each element. */
static struct kvevent_list take_list(struct msgpack_in *in, bool hashes)
{
	uint32_t n = msgpack_get_array(in);
	struct kvevent_list l = {.at = *in, .n = n};
	for (uint32_t i = 0; i < n && !msgpack_bad(in); i++)
		if (hashes)
			(void)take_hash(in);
		else
			(void)msgpack_get_u32(in);
	return msgpack_bad(in) ? (struct kvevent_list){.at = *in} : l;
}

/* ---- fields ---- */

static struct cgn_str take_text(struct msgpack_in *in)
{
	return msgpack_get_nil(in) ? (struct cgn_str){0} : msgpack_get_str(in);
}

/* A number since vLLM 0.10; SGLang may put the LoRA's name here. */
static void take_lora_id(struct reading *r)
{
	if (msgpack_get_nil(&r->in))
		return;
	if (msgpack_peek(&r->in) == MSGPACK_STR)
		r->e.lora = msgpack_get_str(&r->in);
	else
		r->e.lora_id = msgpack_get_u64(&r->in);
}

static void take_metadata(struct reading *r)
{
	if (msgpack_get_nil(&r->in))
		return;
	for (uint32_t n = msgpack_get_map(&r->in); n > 0 && !msgpack_bad(&r->in); n--) {
		struct cgn_str key = msgpack_get_str(&r->in);
		if (cgn_str_is(key, "cache_salt")) {
			r->e.salt = take_text(&r->in);
		} else {
			msgpack_skip(&r->in);
			r->batch->unknown_fields++;
		}
	}
}

static void take_lora_name(struct reading *r)
{
	if (msgpack_peek(&r->in) == MSGPACK_MAP) { /* SGLang's metadata has this position. */
		take_metadata(r);
		return;
	}
	struct cgn_str name = take_text(&r->in);
	if (name.n > 0)
		r->e.lora = name;
}

static void take_extra_keys(struct reading *r)
{
	if (msgpack_get_nil(&r->in))
		return;
	if (msgpack_peek(&r->in) != MSGPACK_ARRAY)
		msgpack_fault(&r->in, "extra_keys is not an array");
	r->e.extra_keys = msgpack_get_raw(&r->in);
}

static void take_group(struct reading *r)
{
	if (msgpack_get_nil(&r->in))
		return;
	r->e.group = msgpack_get_u32(&r->in);
	if (r->e.group >= KVEVENT_MAX_GROUPS)
		msgpack_fault(&r->in, "a group_idx over 31");
}

static void take_parent(struct reading *r)
{
	if (msgpack_get_nil(&r->in))
		return;
	r->e.parent = take_hash(&r->in);
	r->e.has_parent = true;
}

static void take_window(struct reading *r)
{
	if (msgpack_get_nil(&r->in))
		return;
	(void)msgpack_get_u64(&r->in);
	r->has_window = true;
}

static void take_field(struct reading *r, enum field f)
{
	r->seen |= 1U << f;
	switch (f) {
	case F_HASHES:
		r->e.hashes = take_list(&r->in, true);
		return;
	case F_PARENT:
		take_parent(r);
		return;
	case F_TOKENS:
		r->e.tokens = take_list(&r->in, false);
		return;
	case F_BLOCK_SIZE:
		r->e.block_size = msgpack_get_nil(&r->in) ? 0 : msgpack_get_u32(&r->in);
		return;
	case F_LORA_ID:
		take_lora_id(r);
		return;
	case F_MEDIUM:
		r->medium = take_text(&r->in);
		return;
	case F_LORA_NAME:
		take_lora_name(r);
		return;
	case F_EXTRA_KEYS:
		take_extra_keys(r);
		return;
	case F_GROUP:
		take_group(r);
		return;
	case F_KIND:
		r->kind = take_text(&r->in);
		return;
	case F_WINDOW:
		take_window(r);
		return;
	case F_LOCALITY:
		r->locality = take_text(&r->in);
		return;
	case F_SALT:
		r->e.salt = take_text(&r->in);
		return;
	case F_METADATA:
		take_metadata(r);
		return;
	case F_TYPE:
		msgpack_skip(&r->in);
		return;
	case F_UNKNOWN:
		msgpack_skip(&r->in);
		r->batch->unknown_fields++;
		return;
	}
}

/* ---- meaning of the fields together ---- */

static enum block_tier tier_of(struct cgn_str medium, struct cgn_str locality)
{
	static const struct {
		const char *name;
		enum block_tier tier;
	} media[] = {{"GPU", BLOCK_GPU}, {"CPU", BLOCK_RAM}, {"CPU_PINNED", BLOCK_RAM},
		{"CPU_TIER1", BLOCK_RAM}, {"CPU_TIER2", BLOCK_RAM}, {"STORAGE", BLOCK_SSD},
		{"DISK", BLOCK_SSD}, {"SSD", BLOCK_SSD}, {"FS", BLOCK_SSD}, {"NVME", BLOCK_SSD}};
	if (cgn_str_eq_nocase(locality, CGN_STR("REMOTE")))
		return BLOCK_REMOTE;
	if (medium.n == 0)
		return BLOCK_GPU;
	for (size_t i = 0; i < CGN_COUNT(media); i++)
		if (cgn_str_eq_nocase(medium, cgn_str_of(media[i].name)))
			return media[i].tier;
	return BLOCK_REMOTE;
}

static bool map_holds(struct cgn_str s, const char *word)
{
	return s.n > 0 && memmem(s.p, s.n, word, strlen(word)) != NULL;
}

/* "full_attention", "mla_attention" and similar kinds keep the whole prefix; "sliding_window...",
 * "chunked_local_attention" and "mamba" do not. */
static bool is_windowed(const struct reading *r)
{
	if (r->kind.n == 0)
		return r->has_window;
	return map_holds(r->kind, "sliding") || (!map_holds(r->kind, "full") && !map_holds(r->kind, "mla"));
}

bool kvevent_tokens_fit(const struct kvevent *e)
{
	return (uint64_t)e->hashes.n * e->block_size == e->tokens.n;
}

static void check_stored(struct reading *r)
{
	const struct kvevent *e = &r->e;
	if ((r->seen & 1U << F_HASHES) == 0)
		msgpack_fault(&r->in, "a BlockStored without block_hashes");
	else if (!e->windowed && e->tokens.n > 0 && !kvevent_tokens_fit(e))
		msgpack_fault(&r->in, "a BlockStored whose token_ids are not block_size for each hash");
}

/* Check that there are as many entries as blocks, each an array or nil. Any other value is a foreign value of
 * every block. */
static void check_extra(struct reading *r)
{
	struct msgpack_in in = msgpack_in_of(r->e.extra_keys);
	if (r->e.extra_keys.n == 0)
		return;
	uint32_t n = msgpack_get_array(&in);
	if (n != 0 && n != r->e.hashes.n)
		msgpack_fault(&r->in, "extra_keys that are not one for each hash");
	for (uint32_t i = 0; i < n; i++) {
		if (msgpack_peek(&in) != MSGPACK_NIL && msgpack_peek(&in) != MSGPACK_ARRAY)
			msgpack_fault(&r->in, "an entry of extra_keys is not an array");
		msgpack_skip(&in);
	}
	if (n == 0)
		r->e.extra_keys = (struct cgn_str){0};
}

static void finish_event(struct reading *r, void (*each)(void *, const struct kvevent *), void *user)
{
	r->e.tier = tier_of(r->medium, r->locality);
	r->e.windowed = is_windowed(r);
	if (r->e.type == KVEVENT_STORED)
		check_stored(r);
	else if (r->e.type == KVEVENT_REMOVED && (r->seen & 1U << F_HASHES) == 0)
		msgpack_fault(&r->in, "a BlockRemoved without block_hashes");
	check_extra(r);
	if (msgpack_bad(&r->in))
		return;
	r->batch->events++;
	if (each != NULL)
		each(user, &r->e);
}

static enum kvevent_type type_of(struct cgn_str tag)
{
	for (unsigned i = 0; i < KVEVENT_TYPES; i++)
		if (cgn_str_is(tag, type_names[i]))
			return (enum kvevent_type)i;
	return KVEVENT_TYPES;
}

/* ---- layouts ---- */

static void read_places(struct reading *r, uint32_t n)
{
	const uint8_t *places = r->e.type == KVEVENT_STORED ? stored_places : removed_places;
	size_t n_places = r->e.type == KVEVENT_STORED ? sizeof stored_places
		: r->e.type == KVEVENT_REMOVED        ? sizeof removed_places
						      : 0;
	for (uint32_t i = 0; i < n && !msgpack_bad(&r->in); i++)
		take_field(r, i < n_places ? (enum field)places[i] : F_UNKNOWN);
}

static enum field field_of(struct cgn_str key)
{
	for (unsigned i = 0; i < CGN_COUNT(field_names); i++)
		if (cgn_str_is(key, field_names[i]))
			return (enum field)i;
	return F_UNKNOWN;
}

static void read_names(struct reading *r, uint32_t n)
{
	for (; n > 0 && !msgpack_bad(&r->in); n--) {
		enum field f = field_of(msgpack_get_str(&r->in));
		take_field(r, f);
	}
}

/* Return the value of "type" in the next map, which has |n| pairs. The cursor does not move. */
static struct cgn_str find_tag(struct msgpack_in in, uint32_t n)
{
	for (; n > 0 && !msgpack_bad(&in); n--) {
		if (cgn_str_is(msgpack_get_str(&in), "type"))
			return msgpack_get_str(&in);
		msgpack_skip(&in);
	}
	return (struct cgn_str){0};
}

static void read_event(struct reading *r, void (*each)(void *, const struct kvevent *), void *user)
{
	bool named = msgpack_peek(&r->in) == MSGPACK_MAP;
	struct msgpack_in start = r->in;
	uint32_t n = named ? msgpack_get_map(&r->in) : msgpack_get_array(&r->in);
	struct cgn_str tag = named ? find_tag(r->in, n)
		: n > 0            ? msgpack_get_str(&r->in)
				   : (struct cgn_str){0};
	if (tag.n == 0)
		msgpack_fault(&r->in, "an event without a type");
	if (msgpack_bad(&r->in))
		return;
	r->e = (struct kvevent){.type = type_of(tag)};
	r->medium = r->locality = r->kind = (struct cgn_str){0};
	r->has_window = false;
	r->seen = 0;
	if (r->e.type == KVEVENT_TYPES) {
		r->in = start;
		msgpack_skip(&r->in);
		r->batch->unknown_events++;
		return;
	}
	if (named)
		read_names(r, n);
	else
		read_places(r, n - 1);
	if (!msgpack_bad(&r->in))
		finish_event(r, each, user);
}

static void read_events(struct reading *r, void (*each)(void *, const struct kvevent *), void *user)
{
	for (uint32_t n = msgpack_get_array(&r->in); n > 0 && !msgpack_bad(&r->in); n--)
		read_event(r, each, user);
}

static void read_rank(struct reading *r)
{
	if (!msgpack_get_nil(&r->in))
		r->batch->dp_rank = msgpack_get_i64(&r->in);
}

static void read_batch_array(struct reading *r, void (*each)(void *, const struct kvevent *), void *user)
{
	uint32_t n = msgpack_get_array(&r->in);
	if (n < 2)
		msgpack_fault(&r->in, "a batch without events");
	r->batch->ts = msgpack_get_f64(&r->in);
	read_events(r, each, user);
	if (n > 2)
		read_rank(r);
	for (uint32_t i = 3; i < n && !msgpack_bad(&r->in); i++) {
		msgpack_skip(&r->in);
		r->batch->unknown_fields++;
	}
}

static void read_batch_map(struct reading *r, void (*each)(void *, const struct kvevent *), void *user)
{
	bool events = false;
	for (uint32_t n = msgpack_get_map(&r->in); n > 0 && !msgpack_bad(&r->in); n--) {
		struct cgn_str key = msgpack_get_str(&r->in);
		if (cgn_str_is(key, "ts")) {
			r->batch->ts = msgpack_get_f64(&r->in);
		} else if (cgn_str_is(key, "events") && !events) {
			events = true;
			read_events(r, each, user);
		} else if (cgn_str_is(key, "data_parallel_rank") || cgn_str_is(key, "attn_dp_rank")) {
			read_rank(r);
		} else {
			msgpack_skip(&r->in);
			r->batch->unknown_fields += !cgn_str_is(key, "type");
		}
	}
	if (!events)
		msgpack_fault(&r->in, "a batch without events");
}

CGN_RC kvevent_batch_read(struct cgn_str payload, void (*each)(void *user, const struct kvevent *e),
	void *user, struct kvevent_batch *out, struct cgn_err *err)
{
	*out = (struct kvevent_batch){.dp_rank = -1};
	struct reading r = {.in = msgpack_in_of(payload), .batch = out};
	if (msgpack_peek(&r.in) == MSGPACK_MAP)
		read_batch_map(&r, each, user);
	else
		read_batch_array(&r, each, user);
	if (!msgpack_bad(&r.in) && !msgpack_end(&r.in))
		msgpack_fault(&r.in, "more bytes behind the batch");
	if (msgpack_bad(&r.in))
		return CGN_FAIL(err, INVALID, "%s, at byte %zu of %zu", r.in.bad, r.in.bad_at, payload.n);
	return CGN_OK;
}

/* ---- extra keys ---- */

static bool is_lora(struct msgpack_in in, struct cgn_str lora)
{
	return lora.n > 0 && msgpack_peek(&in) == MSGPACK_STR && cgn_str_eq(msgpack_get_str(&in), lora);
}

/* Find the first foreign value of an entry, and decide whether the last bare string is the salt. In vLLM's
 * order the foreign values are contiguous. */
void kvevent_extra_next(struct msgpack_in *entries, struct cgn_str lora, bool first_of_prompt,
	struct kvevent_extra *out)
{
	*out = (struct kvevent_extra){0};
	if (msgpack_get_nil(entries))
		return;
	uint32_t n = msgpack_get_array(entries);
	if (n > 0 && is_lora(*entries, lora)) {
		msgpack_skip(entries);
		n--;
	}
	const char *begin = (const char *)entries->at;
	for (; n > 0; n--) {
		bool bare = msgpack_peek(entries) == MSGPACK_STR;
		struct msgpack_in probe = *entries;
		msgpack_skip(entries);
		/* The salt stays among the foreign values too, unless it is the only one. */
		if (bare && first_of_prompt)
			out->salt = msgpack_get_str(&probe);
	}
	out->foreign = (struct cgn_str){begin, (size_t)((const char *)entries->at - begin)};
	if (out->salt.p != NULL && out->foreign.n > 0) {
		struct msgpack_in alone = msgpack_in_of(out->foreign);
		msgpack_skip(&alone);
		if (msgpack_end(&alone))
			out->foreign = (struct cgn_str){0};
	}
}
