/* SPDX-License-Identifier: Apache-2.0 */
/* lora: LoRA adapters that are loaded and unloaded while the engine runs. Texts and statuses are those of vLLM
 * (/v1/load_lora_adapter) and of SGLang (/load_lora_adapter). One worker. At most SIM_MODELS_MAX names in a run. */
#include <stdlib.h>
#include <unistd.h>

#include "sim/server/call_priv.h"

static bool is_vllm(const struct sim_call *c)
{
	return cgn_str_starts(cgn_str_of(c->route->path), "/v1/");
}

/* Answer with a refusal in the form of the route's engine. */
static void lora_refuse(struct sim_call *c, const struct sim_refusal *no)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	if (is_vllm(c)) {
		sim_call_refuse(c, no);
		return;
	}
	json_open(&o, '{');
	json_key_bool(&o, "success", false);
	json_key_z(&o, "error_message", no->msg);
	json_close(&o, '}');
	sim_call_answer(c, 400, cgn_buf_view(&b));
}

static void lora_answer(struct sim_call *c, struct cgn_str name, const char *did)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	if (is_vllm(c))
		cgn_buf_fmt(&b, "Success: LoRA adapter '%.*s' %s successfully.", CGN_STR_ARG(name), did);
	else
		cgn_buf_putz(&b, "{\"success\":true,\"error_message\":\"\"}");
	sim_call_answer(c, 200, cgn_buf_view(&b));
}

/* Read the member |key|, a string that is not empty. */
static bool text_read(struct sim_call *c, struct json_val root, const char *key, struct cgn_str *out)
{
	struct json_val v;
	bool found = json_get(root, key, &v) && v.type == JSON_STRING;
	*out = found ? json_str(v, &c->w->arena) : CGN_STR("");
	return out->n > 0;
}

static bool is_adapter(struct cgn_str path)
{
	char file[1200];
	int n = snprintf(file, sizeof file, "%.*s/adapter_config.json", CGN_STR_ARG(path));
	return n > 0 && (size_t)n < sizeof file && access(file, R_OK) == 0;
}

/* Serve |name| from now on. A name that was unloaded gets its place back, as KV events number LoRAs by their place. */
static bool model_add(struct sim_call *c, struct cgn_str name, struct sim_refusal *no)
{
	struct sim_cfg *cfg = c->w->team->loras;
	enum sim_model_state state = is_vllm(c) ? SIM_MODEL_PLAIN : SIM_MODEL_AFTER_BASE;
	for (unsigned i = 0; i < cfg->n_models; i++)
		if (cfg->model_state[i] == SIM_MODEL_UNLOADED && cgn_str_is(name, cfg->models[i])) {
			cfg->model_state[i] = state;
			return true;
		}
	struct cgn_buf quoted = {0}; /* Owned by the team as long as the process lives. */
	char *copy = cfg->n_models < SIM_MODELS_MAX ? cgn_str_dupz(name) : NULL;
	if (copy == NULL)
		return sim_refuse(no, 500, NULL, NULL, "no room for more than %d models", SIM_MODELS_MAX);
	sim_put_string(&quoted, name);
	c->w->team->models[cfg->n_models] = cgn_buf_view(&quoted);
	cfg->model_state[cfg->n_models] = state;
	cfg->models[cfg->n_models++] = copy;
	return true;
}

static bool lora_load(struct sim_call *c, struct json_val root, struct cgn_str *name, struct sim_refusal *no)
{
	struct cgn_str path;
	bool vllm = is_vllm(c);
	if (!text_read(c, root, "lora_name", name) || !text_read(c, root, "lora_path", &path))
		return sim_refuse(no, 400, NULL, NULL, "Both 'lora_name' and 'lora_path' must be provided.");
	if (sim_model_named(c->w->cfg, *name) < c->w->cfg->n_models)
		return sim_refuse(no, 400, NULL, NULL,
			vllm ? "The lora adapter '%.*s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
			     : "Failed to load LoRA adapter %.*s because it is already loaded",
			CGN_STR_ARG(*name));
	if (!is_adapter(path))
		return sim_refuse(no, vllm ? 404 : 400, NULL, NULL,
			"Loading lora %.*s failed: No adapter found for %.*s",
			(int)(name->n < 80 ? name->n : 80), name->p, (int)(path.n < 200 ? path.n : 200),
			path.p);
	return model_add(c, *name, no);
}

static bool lora_unload(struct sim_call *c, struct json_val root, struct cgn_str *name,
	struct sim_refusal *no)
{
	if (!text_read(c, root, "lora_name", name))
		return sim_refuse(no, 400, NULL, NULL,
			"either 'lora_name' and 'lora_int_id' needs to be provided.");
	unsigned i = sim_model_named(c->w->cfg, *name);
	if (i == 0 || i == c->w->cfg->n_models)
		return sim_refuse(no, is_vllm(c) ? 404 : 400, NULL, NULL,
			is_vllm(c) ? "The lora adapter '%.*s' cannot be found."
				   : "LoRA with name %.*s does not exist. Loaded LoRAs: odict_keys([...])",
			CGN_STR_ARG(*name));
	c->w->team->loras->model_state[i] = SIM_MODEL_UNLOADED;
	return true;
}

typedef bool lora_change(struct sim_call *c, struct json_val root, struct cgn_str *name,
	struct sim_refusal *no);
static void lora_run(struct sim_call *c, lora_change *change, const char *did)
{
	struct sim_refusal no;
	struct json_val root;
	struct cgn_str name = {NULL, 0};
	bool ok = c->w->team->loras != NULL;
	if (!ok) { /* vLLM has no such route then. */
		sim_call_refuse_as(c, 404, "Not Found");
		return;
	}
	if (!cgn_ok(json_parse(cgn_buf_view(&c->body), &root, NULL, NULL)) || root.type != JSON_OBJECT)
		ok = sim_refuse(&no, 400, NULL, NULL, "the body must be a JSON object");
	ok = ok && change(c, root, &name, &no);
	if (ok)
		lora_answer(c, name, did);
	else
		lora_refuse(c, &no);
	cgn_arena_reset(&c->w->arena);
}

void sim_route_lora_load(struct sim_call *c)
{
	lora_run(c, lora_load, "added");
}

void sim_route_lora_unload(struct sim_call *c)
{
	lora_run(c, lora_unload, "removed");
}
