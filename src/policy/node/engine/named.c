/* SPDX-License-Identifier: Apache-2.0 */
/* named: compare the name that the configuration gives an engine's model with the engine's own list. */
#include "base/json/json.h"
#include "policy/node/engine/engine.h"
#include "policy/node/engine/models.h"

#define SHOWN_MOST 5 /* Names in the reason */

static bool name_matches(struct json_val v, struct cgn_str model)
{
	char room[ENGINE_SERVED_MAX + 1];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	if (v.type != JSON_STRING)
		return false;
	json_str_to(v, &b);
	struct cgn_str name = cgn_buf_view(&b), tag = CGN_STR(":latest");
	bool tagged = name.n == model.n + tag.n && cgn_str_starts(name, model.p) &&
		memcmp(name.p + model.n, tag.p, tag.n) ==
			0; /* Ollama takes the name without its default tag. */
	return !b.bad && (cgn_str_eq(name, model) || tagged);
}

static bool entry_matches(struct json_val entry, struct cgn_str model)
{
	struct json_val id, aliases, alias;
	if (json_get(entry, "id", &id) && name_matches(id, model))
		return true;
	if (!json_get(entry, "aliases", &aliases) || aliases.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(aliases); json_next_elem(&it, &alias);)
		if (name_matches(alias, model))
			return true;
	return false;
}

/* vLLM and SGLang list LoRAs beside their model, which is the "parent". */
static bool is_adapter(struct json_val entry)
{
	struct json_val parent;
	return json_get(entry, "parent", &parent) && parent.type == JSON_STRING;
}

/* Read the entry's name into |out|. False: it has none that can be used. */
static bool entry_name(struct json_val entry, char out[ENGINE_SERVED_MAX + 1])
{
	struct json_val id;
	struct cgn_buf b = cgn_buf_over(out, ENGINE_SERVED_MAX + 1);
	if (!json_get(entry, "id", &id) || id.type != JSON_STRING)
		return false;
	json_str_to(id, &b);
	bool sound = !b.bad && b.n > 0 && b.n <= ENGINE_SERVED_MAX && memchr(b.p, '\0', b.n) == NULL;
	(void)cgn_buf_z(&b);
	return sound;
}

bool engine_named_judge(struct cgn_str body, const char *model, struct engine_named *out)
{
	struct json_val doc, data, entry;
	char name[ENGINE_SERVED_MAX + 1];
	size_t n = 0;
	*out = (struct engine_named){.lacks = false};
	struct cgn_buf why = cgn_buf_over(out->listed, sizeof out->listed);
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)) || !json_get(doc, "data", &data) ||
		data.type != JSON_ARRAY)
		return false;
	for (struct json_iter it = json_iter_of(data); json_next_elem(&it, &entry);) {
		if (entry_matches(entry, cgn_str_of(model))) {
			out->served[0] = '\0';
			return true;
		}
		if (is_adapter(entry) || !entry_name(entry, name))
			continue;
		if (n == 0)
			(void)cgn_str_copyz(out->served, sizeof out->served, cgn_str_of(name));
		if (n < SHOWN_MOST)
			cgn_buf_fmt(&why, "%s%.60s", n > 0 ? ", " : "", name);
		n++;
	}
	if (n > SHOWN_MOST)
		cgn_buf_fmt(&why, " and %zu more", n - SHOWN_MOST);
	(void)cgn_buf_z(&why);
	out->lacks = n > 1;
	if (out->lacks)
		out->served[0] = '\0';
	return n > 0;
}
