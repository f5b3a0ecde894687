/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz prom_text: the reader ends for any bytes, and everything that it returns lies inside them. */
#include <stdlib.h>
#include <string.h>

#include "base/core/err.h"
#include "policy/node/engine/prom.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void is_inside(struct cgn_str part, const char *from, size_t n)
{
	CGN_MUST(part.n == 0 || (part.p >= from && part.p + part.n <= from + n));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* Allocated with the exact size, so that the sanitizer sees reads beyond it */
	char *text = malloc(size > 0 ? size : 1);
	if (text == NULL)
		return 0;
	memcpy(text, data, size);
	struct prom_reader r = prom_reader_of((struct cgn_str){text, size});
	struct prom_sample s;
	size_t lines = 0;
	while (prom_next(&r, &s)) {
		struct cgn_str value = {NULL, 0};
		is_inside(s.name, text, size);
		is_inside(s.labels, text, size);
		if (prom_label(&s, "le", &value))
			is_inside(value, text, size);
		lines++;
	}
	CGN_MUST(lines + r.skipped <= size + 1);
	double v = 0;
	(void)prom_sum((struct cgn_str){text, size}, "a", &v);
	free(text);
	return 0;
}
