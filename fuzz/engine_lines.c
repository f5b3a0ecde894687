/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz engine_lines: an engine's lines have a level and leave a sentence, whatever bytes they are. */
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "policy/node/engine/lastwords.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* Allocated with the exact size, so that the sanitizer sees reads beyond it */
	char *text = malloc(size > 0 ? size : 1), out[300];
	struct engine_words w;
	if (text == NULL)
		return 0;
	memcpy(text, data, size);
	engine_words_begin(&w);
	struct cgn_str rest = {text, size};
	while (rest.p != NULL) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		CGN_MUST(engine_line_level(line) <= ENGINE_LINE_ERROR);
		engine_words_line(&w, line);
	}
	const struct engine_end end = {.how = "exit status 1", .code = 1, .oom_kill = size % 2 == 1};
	engine_words_tell(&w, &end, out, sizeof out);
	CGN_MUST(strlen(out) < sizeof out && cgn_utf8_valid(w.said, strlen(w.said)));
	free(text);
	return 0;
}
