/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz modelsource: every file of a list that is taken has a safe path. The first byte chooses the reader. */
#include <stdlib.h>

#include "policy/node/modelsource/modelsource.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct cgn_arena arena;
	struct cgn_err err;
	struct modelsource source;
	char token[1100], next[128];
	if (n < 1)
		return 0;
	cgn_arena_init(&arena, (size_t)64 << 20);
	struct modelsource_list l = {.arena = &arena};
	char *copy = cgn_str_dupz((struct cgn_str){(const char *)data + 1, n - 1}); /* A block of its own. */
	CGN_MUST(copy != NULL);
	struct cgn_str text = {copy, n - 1};
	if (data[0] % 4 == 0)
		(void)!cgn_ok(modelsource_hub_read(text, &l, &err));
	else if (data[0] % 4 == 1)
		(void)!cgn_ok(modelsource_oci_read(text, &l, next, &err));
	else if (data[0] % 4 == 2)
		(void)!cgn_ok(modelsource_s3_read(text, "models/a", &l, token, &err));
	else if (cgn_ok(modelsource_parse(copy, &source, &err)))
		(void)modelsource_title(&source);
	for (size_t i = 0; i < l.n; i++)
		CGN_MUST(modelsource_path_is_safe(cgn_str_of(l.files[i].path)));
	free(copy);
	cgn_arena_fini(&arena);
	return 0;
}
