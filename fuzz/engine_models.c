/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz engine_models: an engine's list of models gives bounded names and a kind, whatever bytes it is. */
#include <stdlib.h>
#include <string.h>

#include "policy/engine/engine.h"

#define MODELS_MOST 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* Allocated with the exact size, so that the sanitizer sees reads beyond it */
	char *text = malloc(size > 0 ? size : 1);
	struct cgn_arena a;
	const char **names = NULL;
	size_t n = 0;
	if (text == NULL)
		return 0;
	memcpy(text, data, size);
	const struct cgn_str body = {text, size};
	cgn_arena_init(&a, 65536);
	if (cgn_ok(engine_models_read(body, &a, MODELS_MOST, &names, &n, NULL)))
		CGN_MUST(n <= MODELS_MOST);
	for (size_t i = 0; i < n && names != NULL; i++)
		CGN_MUST(strlen(names[i]) > 0);
	CGN_MUST(engine_kind_guess(body) != NULL);
	struct engine_named named;
	if (engine_named_judge(body, "m", &named))
		CGN_MUST(!named.lacks || named.served[0] == '\0');
	cgn_arena_fini(&a);
	free(text);
	return 0;
}
