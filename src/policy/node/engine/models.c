/* SPDX-License-Identifier: Apache-2.0 */
/* models: read an engine's list of models, and which of them are loaded.
 *   | engine | the state of a model | read at |
 *   | llama-server in router mode | "status": {"value": ...} of the list | 0.7.0, asked |
 *   | Ollama | /api/ps lists the loaded ones | documentation of 0.12 |
 *   | LocalAI | /system lists them as "loaded_models" | documentation of 4 | */
#include "base/json/json.h"
#include "base/mix/mix.h"
#include "policy/node/engine/engine_priv.h"

const char *engine_model_state_text(enum engine_model_state s)
{
	static const char *const texts[] = {[ENGINE_MODEL_UNTOLD] = "",
		[ENGINE_MODEL_LOADED] = "ready",
		[ENGINE_MODEL_LOADING] = "loading",
		[ENGINE_MODEL_OUT] = "loadable",
		[ENGINE_MODEL_ASLEEP] = "asleep"};
	return texts[s];
}

/* ---- cards ---- */

/* Tokens; greater numbers are not believed. */
#define CONTEXT_MOST ((uint64_t)1 << 40)
/* Members that a card keeps, in order. */
static const struct {
	const char *name;
	bool tokens; /* A number of tokens: kept if it is a whole one, and believed. */
} card_keys[] = {{"root", false}, {"max_model_len", true}, {"context_length", true}, {"context_window", true},
	{"max_context_length", true}, {"capabilities", false}, {"meta", false}};

static bool is_context(uint64_t tokens)
{
	return tokens > 0 && tokens <= CONTEXT_MOST;
}

/* Append the members of |entry| that fit. */
static void card_write(struct json_val entry, struct cgn_buf *out)
{
	for (size_t i = 0; i < CGN_COUNT(card_keys); i++) {
		const char *key = card_keys[i].name;
		struct json_val v;
		if (!json_get(entry, key, &v) || v.type == JSON_NULL ||
			(card_keys[i].tokens && !is_context(json_get_u64(entry, key, 0))) ||
			out->n + strlen(key) + v.raw.n + 4 > ENGINE_CARD_MAX)
			continue;
		struct json_out j = json_out_to(out);
		if (out->n > 0)
			cgn_buf_putz(out, ",");
		json_key(&j, key);
		json_put_flat(&j, v.raw);
	}
}

#define CREATED_MOST 253402300799U /* The end of the year 9999 */

/* Return the most tokens of a request: what a slot of llama-server holds, else what the engine says of the model. */
static uint64_t context_of(struct json_val entry)
{
	static const char *const keys[] = {"max_model_len", "context_length", "context_window",
		"max_context_length"};
	struct json_val meta;
	uint64_t n = json_get(entry, "meta", &meta) ? json_get_u64(meta, "n_ctx", 0) : 0;
	for (size_t i = 0; i < CGN_COUNT(keys) && n == 0; i++)
		n = json_get_u64(entry, keys[i], 0);
	return is_context(n) ? n : 0;
}

static uint64_t created_of(struct json_val entry)
{
	uint64_t at = json_get_u64(entry, "created", 0);
	return at <= CREATED_MOST ? at : 0;
}

static enum engine_model_state state_of(struct json_val entry)
{
	static const struct {
		const char *text;
		enum engine_model_state state;
	} rows[] = {{"loaded", ENGINE_MODEL_LOADED}, {"loading", ENGINE_MODEL_LOADING},
		{"sleeping", ENGINE_MODEL_ASLEEP}, {"unloaded", ENGINE_MODEL_OUT}};
	struct json_val status, value;
	if (!json_get(entry, "status", &status) || !json_get(status, "value", &value) ||
		value.type != JSON_STRING)
		return ENGINE_MODEL_UNTOLD;
	struct cgn_str text = {value.raw.p + 1, value.raw.n - 2};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (cgn_str_is(text, rows[i].text))
			return rows[i].state;
	return ENGINE_MODEL_OUT; /* Another word, such as that of a failed load: a request has to load it. */
}

/* ---- the list ---- */

struct model_list {
	struct cgn_arena *a;
	struct engine_models *out;
	size_t max, text; /* |text|: bytes of names and cards */
	bool bad;
};

/* Read a name into |room|. p is NULL: there is none, or with n > 0 it is too long. */
static struct cgn_str name_read(struct json_val v, char room[ENGINE_NAME_MAX])
{
	struct cgn_buf b = cgn_buf_over(room, ENGINE_NAME_MAX);
	if (v.type != JSON_STRING)
		return (struct cgn_str){NULL, 0};
	json_str_to(v, &b);
	if (b.bad || b.n == 0 || memchr(b.p, '\0', b.n) != NULL)
		return (struct cgn_str){NULL, b.bad};
	return cgn_buf_view(&b);
}

/* Return the place of |name| in the table: it is there, or the place is empty. */
static uint32_t *name_place(const struct engine_models *m, struct cgn_str name)
{
	size_t at = (size_t)mix_murmur(mix_fnv1a(MIX_FNV1A, name.p, name.n));
	while (m->table[at & m->mask] != 0 && !cgn_str_is(name, m->v[m->table[at & m->mask] - 1].name))
		at++;
	return &m->table[at & m->mask];
}

const struct engine_model *engine_models_find(const struct engine_models *m, struct cgn_str name)
{
	uint32_t at = m->table != NULL ? *name_place(m, name) : 0;
	return at > 0 ? &m->v[at - 1] : NULL;
}

static void model_add(struct model_list *l, struct json_val v, const struct engine_model *like)
{
	char room[ENGINE_NAME_MAX];
	struct cgn_str name = name_read(v, room);
	uint32_t *place = name.p != NULL ? name_place(l->out, name) : NULL;
	if (l->bad || name.n == 0 || (place != NULL && *place != 0))
		return;
	if (place == NULL || l->out->n == l->max || l->text + name.n > ENGINE_MODELS_TEXT) {
		l->out->left_out++;
		return;
	}
	struct engine_model *to = &l->out->v[l->out->n];
	*to = *like;
	to->name = cgn_arena_strz(l->a, name);
	l->bad = to->name == NULL;
	if (l->bad)
		return;
	l->text += name.n;
	*place = (uint32_t)++l->out->n;
}

static void model_entry(struct model_list *l, struct json_val entry)
{
	const struct engine_model like = {.card = "",
		.created = created_of(entry),
		.context = context_of(entry),
		.state = state_of(entry)};
	struct json_val id, aliases, alias;
	if (json_get(entry, "id", &id))
		model_add(l, id, &like);
	if (!json_get(entry, "aliases", &aliases) || aliases.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(aliases); json_next_elem(&it, &alias);)
		model_add(l, alias, &like);
}

/* Give the card to the models |from| to the end, as far as there is room. */
static void cards_give(struct model_list *l, size_t from, size_t to, struct cgn_str card)
{
	const char *z = NULL;
	for (size_t i = from; i < to && card.n > 0 && !l->bad; i++) {
		if (l->text + card.n > ENGINE_MODELS_TEXT)
			return;
		l->text += card.n;
		z = z != NULL ? z : cgn_arena_strz(l->a, card);
		l->bad = z == NULL;
		l->out->v[i].card = z != NULL ? z : "";
	}
}

/* Return the place in the list, from 1; 0: it was not taken. */
static uint32_t list_index(const struct model_list *l, struct json_val v)
{
	char room[ENGINE_NAME_MAX];
	struct cgn_str name = name_read(v, room);
	return name.p != NULL ? *name_place(l->out, name) : 0;
}

/* Return the end of the names that |entry|, which stands at |at| - 1, has. Aliases stand behind their model. */
static size_t names_end(const struct model_list *l, struct json_val entry, size_t at)
{
	struct json_val aliases, alias;
	if (!json_get(entry, "aliases", &aliases) || aliases.type != JSON_ARRAY)
		return at;
	for (struct json_iter it = json_iter_of(aliases); json_next_elem(&it, &alias);)
		if (list_index(l, alias) == at + 1)
			at++;
	return at;
}

/* A second walk, so that names come before cards: the entry of each name that was taken is found again. */
static void cards_read(struct model_list *l, struct json_val data)
{
	char room[ENGINE_CARD_MAX + 64];
	struct json_val entry, id;
	for (struct json_iter it = json_iter_of(data); json_next_elem(&it, &entry) && !l->bad;) {
		uint32_t at = json_get(entry, "id", &id) ? list_index(l, id) : 0;
		if (at == 0 || l->out->v[at - 1].card[0] != '\0')
			continue;
		struct cgn_buf b = cgn_buf_over(room, sizeof room);
		card_write(entry, &b);
		if (!b.bad)
			cards_give(l, at - 1, names_end(l, entry, at), cgn_buf_view(&b));
	}
}

static size_t table_size(size_t max)
{
	size_t n = 16;
	while (n < 2 * max)
		n *= 2;
	return n;
}

CGN_RC engine_models_read(struct cgn_str body, struct cgn_arena *a, size_t max, struct engine_models *out,
	struct cgn_err *err)
{
	struct json_val doc, data, entry;
	struct cgn_err why = {0};
	size_t size = table_size(max);
	struct model_list l = {.a = a, .out = out, .max = max};
	*out = (struct engine_models){.v = cgn_arena_get(a, max * sizeof *out->v),
		.table = cgn_arena_zero(a, size * sizeof *out->table),
		.mask = size - 1};
	if (out->v == NULL || out->table == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no room for %zu model names", max);
	if (!cgn_ok(json_parse(body, &doc, NULL, &why)))
		return CGN_FAIL(err, BAD_GATEWAY, "/v1/models is not JSON: %.200s", why.msg);
	bool listed = json_get(doc, "data", &data);
	if (listed && data.type == JSON_NULL)
		return CGN_OK; /* Ollama without a model */
	if (!listed || data.type != JSON_ARRAY)
		return CGN_FAIL(err, BAD_GATEWAY, "/v1/models has no \"data\" list");
	for (struct json_iter it = json_iter_of(data); json_next_elem(&it, &entry);)
		model_entry(&l, entry);
	cards_read(&l, data);
	return l.bad ? CGN_FAIL(err, NO_MEMORY, "no room for the model names") : CGN_OK;
}

bool engine_models_named_alike(const struct engine_models *a, const struct engine_models *b)
{
	bool same = a->n == b->n && a->left_out == b->left_out;
	for (size_t i = 0; same && i < a->n; i++)
		same = strcmp(a->v[i].name, b->v[i].name) == 0;
	return same;
}

bool engine_models_equal(const struct engine_models *a, const struct engine_models *b)
{
	bool same = a->holds == b->holds && engine_models_named_alike(a, b);
	for (size_t i = 0; same && i < a->n; i++)
		same = strcmp(a->v[i].card, b->v[i].card) == 0 && a->v[i].context == b->v[i].context &&
			a->v[i].state == b->v[i].state;
	return same;
}

/* ---- loaded models ---- */

static void loaded_set(struct engine_models *m, struct json_val v)
{
	char room[ENGINE_NAME_MAX];
	struct cgn_str name = name_read(v, room);
	uint32_t at = name.p != NULL ? *name_place(m, name) : 0;
	if (at > 0)
		m->v[at - 1].state = ENGINE_MODEL_LOADED;
}

/* Set the states by the string members |keys| of the objects in the list |key|. */
static bool loaded_mark(struct cgn_str body, const char *key, const char *const *keys, size_t n_keys,
	struct engine_models *into)
{
	struct json_val doc, list, entry, name;
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)) || !json_get(doc, key, &list) ||
		(list.type != JSON_ARRAY && list.type != JSON_NULL))
		return false;
	for (size_t i = 0; i < into->n; i++)
		into->v[i].state = ENGINE_MODEL_OUT;
	if (list.type == JSON_NULL) /* Go writes an empty list so. */
		return true;
	for (struct json_iter it = json_iter_of(list); json_next_elem(&it, &entry);)
		for (size_t k = 0; k < n_keys; k++)
			if (json_get(entry, keys[k], &name))
				loaded_set(into, name);
	return true;
}

bool engine_loaded_ollama(struct cgn_str body, struct engine_models *into)
{
	static const char *const keys[] = {"name", "model"};
	return loaded_mark(body, "models", keys, CGN_COUNT(keys), into);
}

bool engine_loaded_localai(struct cgn_str body, struct engine_models *into)
{
	static const char *const keys[] = {"id"};
	return loaded_mark(body, "loaded_models", keys, CGN_COUNT(keys), into);
}
