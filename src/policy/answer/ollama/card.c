/* SPDX-License-Identifier: Apache-2.0 */
/* card: facts of a model for which no engine is asked. */
#include "base/codec/codec.h"
#include "base/digest/digest.h"
#include "policy/answer/ollama/ollama_priv.h"

#define FOREVER_MS 253402300799000ULL /* The end of the year 9999. */

#define ARCHITECTURE "cognitora"

/* A card, parsed. The values borrow from |text|. */
struct card {
	char text[OLLAMA_CARD_MAX + 3];
	struct json_val doc, meta; /* raw.p NULL: there is none. */
};

static void card_parse(const struct ollama_model *m, struct card *out)
{
	struct cgn_buf b = cgn_buf_over(out->text, sizeof out->text);
	out->doc = out->meta = (struct json_val){.type = JSON_NULL};
	cgn_buf_fmt(&b, "{%.*s}", CGN_STR_ARG(m->card));
	if (b.bad || !cgn_ok(json_parse(cgn_buf_view(&b), &out->doc, NULL, NULL)))
		out->doc = (struct json_val){.type = JSON_NULL};
	(void)json_get(out->doc, "meta", &out->meta);
}

/* Write the number of parameters as Ollama does: "8.0B", "724.35K". */
static void parameters_put(struct json_out *j, uint64_t n)
{
	char text[32] = "";
	if (n >= 1000000000)
		(void)snprintf(text, sizeof text, "%.1fB", (double)n / 1e9);
	else if (n >= 1000000)
		(void)snprintf(text, sizeof text, "%.2fM", (double)n / 1e6);
	else if (n > 0)
		(void)snprintf(text, sizeof text, "%.2fK", (double)n / 1e3);
	json_key_z(j, "parameter_size", text);
}

static void details_put(struct json_out *j, const struct card *c)
{
	struct json_val ftype;
	json_key_open(j, "details", '{');
	json_key_z(j, "parent_model", "");
	json_key_z(j, "format", json_get(c->meta, "n_vocab", &ftype) ? "gguf" : "");
	json_key_z(j, "family", "");
	parameters_put(j, json_get_u64(c->meta, "n_params", 0));
	json_key(j, "quantization_level");
	if (json_get(c->meta, "ftype", &ftype) && ftype.type == JSON_STRING)
		json_put_raw(j, ftype.raw);
	else
		json_put_z(j, "");
	json_key_open(j, "families", '[');
	json_close(j, ']');
	json_close(j, '}');
}

/* The engine's capabilities where they are a list, as Ollama's are. */
static void capabilities_put(struct json_out *j, const struct card *c)
{
	struct json_val v;
	json_key(j, "capabilities");
	if (json_get(c->doc, "capabilities", &v) && v.type == JSON_ARRAY)
		json_put_raw(j, v.raw);
	else
		json_put_raw(j, CGN_STR("[\"completion\",\"tools\"]"));
}

void ollama_put_card(struct json_out *j, const struct ollama_model *m, const struct ollama_running *running)
{
	struct card c;
	card_parse(m, &c);
	char hex[2 * DIGEST_BYTES];
	struct cgn_buf b = cgn_buf_over(hex, sizeof hex);
	struct digest d = digest_of(m->name);
	hex_put(&b, (struct cgn_str){(const char *)d.b, sizeof d.b});
	json_open(j, '{');
	json_key_str(j, "name", m->name);
	json_key_str(j, "model", m->name);
	if (running == NULL)
		ollama_put_time(j, "modified_at", m->since_ms);
	json_key_u64(j, "size",
		running != NULL && running->bytes > 0 ? running->bytes : json_get_u64(c.meta, "size", 0));
	json_key_str(j, "digest", cgn_buf_view(&b));
	details_put(j, &c);
	if (running != NULL) {
		ollama_put_time(j, "expires_at", running->expires_ms > 0 ? running->expires_ms : FOREVER_MS);
		json_key_u64(j, "size_vram", 0);
	}
	json_close(j, '}');
}

void ollama_put_show(const struct ollama_model *m, struct cgn_buf *out)
{
	struct card c;
	card_parse(m, &c);
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	json_key_z(&j, "modelfile", "");
	json_key_z(&j, "parameters", "");
	json_key_z(&j, "template", "");
	ollama_put_time(&j, "modified_at", m->since_ms);
	details_put(&j, &c);
	json_key_open(&j, "model_info", '{');
	json_key_str(&j, "general.basename", m->name);
	json_key_z(&j, "general.architecture", ARCHITECTURE);
	if (m->context > 0)
		json_key_u64(&j, ARCHITECTURE ".context_length", m->context);
	json_close(&j, '}');
	capabilities_put(&j, &c);
	json_close(&j, '}');
}

void ollama_put_loaded(enum ollama_api api, struct cgn_str model, bool unloads, uint64_t wall_ms,
	struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	bool embeds = api == OLLAMA_EMBED || api == OLLAMA_EMBEDDINGS;
	json_open(&j, '{');
	if (api != OLLAMA_EMBEDDINGS)
		json_key_str(&j, "model", model);
	if (embeds) {
		json_key_open(&j, api == OLLAMA_EMBED ? "embeddings" : "embedding", '[');
		json_close(&j, ']');
		json_close(&j, '}');
		return;
	}
	ollama_put_time(&j, "created_at", wall_ms);
	if (api == OLLAMA_CHAT) {
		json_key_open(&j, "message", '{');
		json_key_z(&j, "role", "assistant");
		json_key_z(&j, "content", "");
		json_close(&j, '}');
	} else {
		json_key_z(&j, "response", "");
	}
	json_key_bool(&j, "done", true);
	json_key_z(&j, "done_reason", unloads ? "unload" : "load");
	json_close(&j, '}');
}
