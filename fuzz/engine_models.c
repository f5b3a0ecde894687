/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz engine_models: an engine's list of models gives bounded names and a kind, whatever bytes it is. */
#include <stdlib.h>
#include <string.h>

#include "policy/node/engine/engine.h"
#include "policy/node/engine/models.h"

#define MODELS_MOST 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* Allocated with the exact size, so that the sanitizer sees reads beyond it */
	char *text = malloc(size > 0 ? size : 1);
	struct cgn_arena a;
	struct engine_models m = {.n = 0}, again = {.n = 0};
	if (text == NULL)
		return 0;
	memcpy(text, data, size);
	const struct cgn_str body = {text, size};
	cgn_arena_init(&a, 65536);
	if (cgn_ok(engine_models_read(body, &a, MODELS_MOST, &m, NULL)) &&
		cgn_ok(engine_models_read(body, &a, MODELS_MOST, &again, NULL))) {
		CGN_MUST(m.n <= MODELS_MOST);
		CGN_MUST(engine_models_equal(&m, &again));
		for (size_t i = 0; i < m.n; i++) {
			CGN_MUST(strlen(m.v[i].name) > 0 && strlen(m.v[i].card) <= ENGINE_CARD_MAX);
			CGN_MUST(engine_models_find(&m, cgn_str_of(m.v[i].name)) == &m.v[i]);
		}
		for (size_t i = 0; i < ENGINE_MAX_LOADED; i++)
			(void)engine_ops_of(ENGINE_OPENAI_COMPAT)->loaded[i].read(body, &m);
	}
	CGN_MUST(engine_kind_guess(body) != NULL);
	struct engine_named named;
	if (engine_named_judge(body, "m", &named))
		CGN_MUST(!named.lacks || named.served[0] == '\0');
	cgn_arena_fini(&a);
	free(text);
	return 0;
}
