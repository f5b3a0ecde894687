/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/events/events.h"

#include "base/mix/mix.h"
#include "base/msgpack/msgpack.h"

enum engine { ENGINE_VLLM, ENGINE_SGLANG, ENGINE_SGLANG_OLD };

static const struct dialect {
	const char *name;
	bool batch_map, event_map;
	enum engine engine;
	const char *tiers[ENGINEMODEL_TIER_COUNT];
	bool replay_topic;
	const char *help;
} dialects[SIM_DIALECT_COUNT] = {
#define DIALECT(id, name, batch, event, engine, gpu, cpu, storage, topic, help) \
	{name, batch, event, ENGINE_##engine, {gpu, cpu, storage}, topic, help},
#include "sim/events/dialects.def"
#undef DIALECT
};

bool sim_dialect_of(struct cgn_str name, enum sim_dialect *out)
{
	for (enum sim_dialect d = 0; d < SIM_DIALECT_COUNT; d++) {
		if (!cgn_str_is(name, dialects[d].name))
			continue;
		*out = d;
		return true;
	}
	return false;
}

const char *sim_dialect_name(enum sim_dialect d)
{
	CGN_MUST(d < SIM_DIALECT_COUNT);
	return dialects[d].name;
}

const char *sim_dialect_help(enum sim_dialect d)
{
	CGN_MUST(d < SIM_DIALECT_COUNT);
	return dialects[d].help;
}

bool sim_dialect_replays_topic(enum sim_dialect d)
{
	CGN_MUST(d < SIM_DIALECT_COUNT);
	return dialects[d].replay_topic;
}

bool sim_dialect_describes(enum sim_dialect d)
{
	CGN_MUST(d < SIM_DIALECT_COUNT);
	return dialects[d].engine == ENGINE_SGLANG;
}

void sim_events_init(struct sim_events *e, const struct sim_events_cfg *cfg)
{
	CGN_MUST(cfg->groups >= 1 && cfg->groups <= SIM_GROUPS_MAX && cfg->dialect < SIM_DIALECT_COUNT);
	*e = (struct sim_events){.cfg = *cfg};
}

void sim_events_fini(struct sim_events *e)
{
	cgn_buf_fini(&e->inner);
	e->n = 0;
}

bool sim_events_any(const struct sim_events *e)
{
	return e->n > 0;
}

void sim_events_drop(struct sim_events *e)
{
	e->n = 0;
	e->inner.n = 0;
	e->inner.bad = false;
}

static const struct dialect *dialect_of(const struct sim_events *e)
{
	return &dialects[e->cfg.dialect];
}

/* Begin an event; |fields| is the number of its fields besides the type. */
static void open_event(const struct sim_events *e, struct cgn_buf *b, const char *type, uint32_t fields)
{
	if (dialect_of(e)->event_map) {
		msgpack_put_map(b, fields + 1);
		msgpack_put_z(b, "type");
	} else {
		msgpack_put_array(b, fields + 1);
	}
	msgpack_put_z(b, type);
}

static void open_field(struct sim_events *e, const char *name)
{
	if (dialect_of(e)->event_map)
		msgpack_put_z(&e->inner, name);
}

static void put_hash(struct sim_events *e, uint64_t hash)
{
	uint8_t bytes[32];
	if (!e->cfg.hash_bytes) {
		if (dialect_of(e)->engine == ENGINE_VLLM)
			msgpack_put_u64(&e->inner, hash);
		else
			msgpack_put_i64(&e->inner, (int64_t)hash);
		return;
	}
	for (unsigned i = 0; i < 32; i++) {
		uint64_t word = i < 24 ? mix64(hash + 1 + i / 8) : hash;
		bytes[i] = (uint8_t)(word >> (56 - 8 * (i % 8)));
	}
	msgpack_put_bin(&e->inner, (struct cgn_str){(const char *)bytes, sizeof bytes});
}

static void put_hashes(struct sim_events *e, const uint64_t *hashes, uint32_t n)
{
	open_field(e, "block_hashes");
	msgpack_put_array(&e->inner, n);
	for (uint32_t i = 0; i < n; i++)
		put_hash(e, hashes[i]);
}

/* The blocks of one event. */
struct event_blocks {
	enum enginemodel_tier tier;
	const uint64_t *hashes;
	uint32_t n;
	bool first; /* First of the sequence, without a parent. */
	uint64_t parent;
	const uint32_t *tokens; /* NULL: not described. */
	uint64_t at;            /* Position of the first token in the sequence. */
	uint32_t model;
	struct cgn_str salt;
	const struct enginemodel_image *images;
	uint32_t n_images;
	uint32_t group; /* KV cache group of GPU blocks in vLLM. */
};

static void put_tokens(struct sim_events *e, const struct event_blocks *t)
{
	uint32_t n = t->tokens != NULL ? t->n * e->cfg.block_tokens : 0;
	open_field(e, "token_ids");
	msgpack_put_array(&e->inner, n);
	for (uint32_t i = 0; i < n; i++)
		msgpack_put_u64(&e->inner, t->tokens[i]);
}

/* Append the five fields that all dialects begin with. */
static void put_common(struct sim_events *e, const struct event_blocks *t)
{
	put_hashes(e, t->hashes, t->n);
	open_field(e, "parent_block_hash");
	if (t->first || t->tokens == NULL)
		msgpack_put_nil(&e->inner);
	else
		put_hash(e, t->parent);
	put_tokens(e, t);
	open_field(e, "block_size");
	msgpack_put_u64(&e->inner, e->cfg.block_tokens);
	open_field(e, "lora_id");
	if (t->model > 0 && t->tokens != NULL)
		msgpack_put_u64(&e->inner, t->model);
	else
		msgpack_put_nil(&e->inner);
}

static void put_medium(struct sim_events *e, enum enginemodel_tier tier)
{
	open_field(e, "medium");
	msgpack_put_z(&e->inner, dialect_of(e)->tiers[tier]);
}

static bool image_is_in(const struct enginemodel_image *image, uint64_t from, uint64_t to)
{
	return to > image->at && from < image->at + SIM_IMAGE_TOKENS;
}

/* Append the hash of an image and, in dialects whose lists are tuples, its offset from the block's first
 * token. */
static void put_image(struct sim_events *e, const struct enginemodel_image *image, uint64_t from)
{
	char name[65];
	(void)snprintf(name, sizeof name, "%016llx%016llx%016llx%016llx", (unsigned long long)image->hash,
		(unsigned long long)mix64(image->hash + 1), (unsigned long long)mix64(image->hash + 2),
		(unsigned long long)mix64(image->hash + 3));
	if (dialect_of(e)->event_map)
		msgpack_put_array(&e->inner, 2);
	msgpack_put_z(&e->inner, name);
	if (dialect_of(e)->event_map)
		msgpack_put_i64(&e->inner, (int64_t)image->at - (int64_t)from);
}

static void put_extra_of(struct sim_events *e, const struct event_blocks *t, uint32_t block)
{
	uint64_t from = t->at + (uint64_t)block * e->cfg.block_tokens, to = from + e->cfg.block_tokens;
	bool lora = t->model > 0, salted = t->first && block == 0 && t->salt.n > 0;
	uint32_t keys = lora + salted;
	for (uint32_t i = 0; i < t->n_images; i++)
		keys += image_is_in(&t->images[i], from, to);
	if (keys == 0) {
		msgpack_put_nil(&e->inner);
		return;
	}
	msgpack_put_array(&e->inner, keys);
	if (lora)
		msgpack_put_z(&e->inner, e->cfg.models[t->model]);
	for (uint32_t i = 0; i < t->n_images; i++) {
		if (image_is_in(&t->images[i], from, to))
			put_image(e, &t->images[i], from);
	}
	if (salted)
		msgpack_put_str(&e->inner, t->salt);
}

static void put_or_nil(struct sim_events *e, const char *z)
{
	if (z != NULL)
		msgpack_put_z(&e->inner, z);
	else
		msgpack_put_nil(&e->inner);
}

/* True when the field |name| is to be written. A map omits fields with default values, a list has all fields
 * (msgspec's omit_defaults applies to maps). */
static bool wants_field(struct sim_events *e, const char *name, bool there)
{
	bool map = dialect_of(e)->event_map;
	if (map && there)
		open_field(e, name);
	if (!map && !there)
		msgpack_put_nil(&e->inner);
	return there;
}

static void tell_vllm(struct sim_events *e, const struct event_blocks *t)
{
	bool gpu = t->tier == ENGINEMODEL_TIER_GPU, described = t->tokens != NULL,
	     window = gpu && t->group > 0;
	open_event(e, &e->inner, "BlockStored",
		dialect_of(e)->event_map ? 7U + described + (gpu ? 2U : 0U) + window : 11U);
	put_common(e, t);
	put_medium(e, t->tier);
	open_field(e, "lora_name");
	put_or_nil(e, t->model > 0 && described ? e->cfg.models[t->model] : NULL);
	if (wants_field(e, "extra_keys", described)) {
		msgpack_put_array(&e->inner, t->n);
		for (uint32_t i = 0; i < t->n; i++)
			put_extra_of(e, t, i);
	}
	if (wants_field(e, "group_idx", gpu))
		msgpack_put_u64(&e->inner, t->group);
	if (wants_field(e, "kv_cache_spec_kind", gpu))
		put_or_nil(e, window ? "sliding_window" : "full_attention");
	if (wants_field(e, "kv_cache_spec_sliding_window", window))
		msgpack_put_u64(&e->inner, SIM_WINDOW);
}

static void tell_sglang(struct sim_events *e, const struct event_blocks *t)
{
	bool old = dialect_of(e)->engine == ENGINE_SGLANG_OLD;
	bool salted = !old && t->salt.n > 0;
	open_event(e, &e->inner, "BlockStored", 5U + !old + salted);
	put_common(e, t);
	if (!old)
		put_medium(e, t->tier);
	if (!salted)
		return;
	if (!dialect_of(e)->event_map)
		msgpack_put_map(&e->inner, 1);
	msgpack_put_z(&e->inner, "cache_salt");
	msgpack_put_str(&e->inner, t->salt);
}

/* Append the events for a run of blocks. vLLM: one event for each group. SGLang: one event for each page. */
static void write_event(struct sim_events *e, const struct event_blocks *t)
{
	struct event_blocks part = *t;
	if (dialect_of(e)->engine == ENGINE_VLLM) {
		uint32_t groups = t->tier == ENGINEMODEL_TIER_GPU ? e->cfg.groups : 1;
		for (part.group = 0; part.group < groups; part.group++, e->n++)
			tell_vllm(e, &part);
		return;
	}
	part.n = 1;
	for (uint32_t i = 0; i < t->n; i++, e->n++) {
		part.hashes = t->hashes + i;
		part.tokens = t->tokens + (size_t)i * e->cfg.block_tokens;
		if (i > 0) {
			part.first = false;
			part.parent = t->hashes[i - 1];
		}
		tell_sglang(e, &part);
	}
}

static void on_stored(void *arg, const struct enginemodel_run *run)
{
	struct sim_events *e = arg;
	const struct enginemodel_contents *c = run->contents;
	CGN_MUST(c != NULL);
	write_event(e,
		&(struct event_blocks){
			.tier = ENGINEMODEL_TIER_GPU,
			.hashes = run->hashes + run->from,
			.n = run->n,
			.first = run->from == 0,
			.parent = run->from > 0 ? run->hashes[run->from - 1] : 0,
			.tokens = c->tokens + (size_t)run->from * e->cfg.block_tokens,
			.at = (uint64_t)run->from * e->cfg.block_tokens,
			.model = c->model,
			.salt = enginemodel_salt_str(c->salt),
			.images = c->images,
			.n_images = c->n_images,
		});
}

static void on_moved(void *arg, enum enginemodel_tier to, uint64_t hash, const struct enginemodel_note *note)
{
	struct sim_events *e = arg;
	struct event_blocks t = {.tier = to, .hashes = &hash, .n = 1, .first = true};
	if (dialect_of(e)->engine == ENGINE_SGLANG_OLD)
		return;
	if (note != NULL) {
		t.first = note->first;
		t.parent = note->parent;
		t.tokens = note->tokens;
		t.model = note->model;
		t.salt = enginemodel_salt_str(note->salt);
	}
	CGN_MUST(note != NULL || dialect_of(e)->engine == ENGINE_VLLM);
	write_event(e, &t);
}

static void remove_one(struct sim_events *e, enum enginemodel_tier from, uint64_t hash, uint32_t group)
{
	enum engine engine = dialect_of(e)->engine;
	bool list = !dialect_of(e)->event_map,
	     grouped = engine == ENGINE_VLLM && from == ENGINEMODEL_TIER_GPU;
	open_event(e, &e->inner, "BlockRemoved",
		1U + (engine != ENGINE_SGLANG_OLD) + (grouped || (list && engine == ENGINE_VLLM)));
	put_hashes(e, &hash, 1);
	if (engine != ENGINE_SGLANG_OLD)
		put_medium(e, from);
	if (engine == ENGINE_VLLM && wants_field(e, "group_idx", grouped))
		msgpack_put_u64(&e->inner, group);
	e->n++;
}

static void on_removed(void *arg, enum enginemodel_tier from, uint64_t hash)
{
	struct sim_events *e = arg;
	enum engine engine = dialect_of(e)->engine;
	if (engine == ENGINE_SGLANG_OLD && from != ENGINEMODEL_TIER_GPU)
		return;
	uint32_t groups = engine == ENGINE_VLLM && from == ENGINEMODEL_TIER_GPU ? e->cfg.groups : 1;
	for (uint32_t g = 0; g < groups; g++)
		remove_one(e, from, hash, g);
}

static void on_cleared(void *arg)
{
	struct sim_events *e = arg;
	open_event(e, &e->inner, "AllBlocksCleared", 0);
	e->n++;
}

struct enginemodel_listener sim_events_listener(struct sim_events *e)
{
	return (struct enginemodel_listener){on_stored, on_moved, on_removed, on_cleared, e};
}

/* Append an event of a type that readers do not know. */
static void put_alien(const struct sim_events *e, struct cgn_buf *out)
{
	open_event(e, out, "BlockTeleported", 1);
	if (dialect_of(e)->event_map)
		msgpack_put_z(out, "block_hashes");
	msgpack_put_array(out, 1);
	msgpack_put_u64(out, 42);
}

void sim_events_take(struct sim_events *e, double ts, bool alien, struct cgn_buf *out)
{
	bool map = dialect_of(e)->batch_map, ranked = dialect_of(e)->engine != ENGINE_SGLANG_OLD;
	if (map)
		msgpack_put_map(out, 3);
	else
		msgpack_put_array(out, ranked ? 3 : 2);
	if (map)
		msgpack_put_z(out, "ts");
	msgpack_put_f64(out, ts);
	if (map)
		msgpack_put_z(out, "events");
	msgpack_put_array(out, e->n + alien);
	if (alien)
		put_alien(e, out);
	cgn_buf_str(out, cgn_buf_view(&e->inner));
	if (map)
		msgpack_put_z(out, "data_parallel_rank");
	if (ranked)
		msgpack_put_u64(out, e->cfg.rank);
	out->bad |= e->inner.bad;
	sim_events_drop(e);
}
