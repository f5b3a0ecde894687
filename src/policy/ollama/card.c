/* SPDX-License-Identifier: Apache-2.0 */
/* card: what is told of a model without asking an engine. */
#include "base/codec/codec.h"
#include "base/digest/digest.h"
#include "policy/ollama/ollama_priv.h"

#define FOREVER_MS 253402300799000ULL /* The end of the year 9999. */

static void details_put(struct json_out *j)
{
	static const char *const keys[] = {"parent_model", "format", "family", "parameter_size",
		"quantization_level"};
	json_key_open(j, "details", '{');
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		json_key_z(j, keys[i], "");
	json_key_open(j, "families", '[');
	json_close(j, ']');
	json_close(j, '}');
}

void ollama_put_card(struct json_out *j, struct cgn_str name, uint64_t since_ms,
	const struct ollama_running *running)
{
	char hex[2 * DIGEST_BYTES];
	struct cgn_buf b = cgn_buf_over(hex, sizeof hex);
	struct digest d = digest_of(name);
	hex_put(&b, (struct cgn_str){(const char *)d.b, sizeof d.b});
	json_open(j, '{');
	json_key_str(j, "name", name);
	json_key_str(j, "model", name);
	if (running == NULL)
		ollama_put_time(j, "modified_at", since_ms);
	json_key_u64(j, "size", running != NULL ? running->bytes : 0);
	json_key_str(j, "digest", cgn_buf_view(&b));
	details_put(j);
	if (running != NULL) {
		ollama_put_time(j, "expires_at", running->expires_ms > 0 ? running->expires_ms : FOREVER_MS);
		json_key_u64(j, "size_vram", 0);
	}
	json_close(j, '}');
}

void ollama_put_show(struct cgn_str name, uint64_t since_ms, struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	json_open(&j, '{');
	json_key_z(&j, "modelfile", "");
	json_key_z(&j, "parameters", "");
	json_key_z(&j, "template", "");
	ollama_put_time(&j, "modified_at", since_ms);
	details_put(&j);
	json_key_open(&j, "model_info", '{');
	json_key_str(&j, "general.basename", name);
	json_close(&j, '}');
	json_key_open(&j, "capabilities", '[');
	json_put_z(&j, "completion");
	json_put_z(&j, "tools");
	json_close(&j, ']');
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
