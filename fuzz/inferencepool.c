/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz inferencepool: a pool gives a bounded query and ports, and a pod a name and an address, whatever JSON they are. */
#include <stdlib.h>
#include <string.h>

#include "policy/fleet/inferencepool/inferencepool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* Allocated with the exact size, so that the sanitizer sees reads beyond it */
	char *text = malloc(size > 0 ? size : 1);
	struct inferencepool pool = {.n_ports = 0};
	struct inferencepool_pod pod;
	struct json_val doc;
	struct cgn_err err;
	if (text == NULL)
		return 0;
	memcpy(text, data, size);
	if (cgn_ok(json_parse((struct cgn_str){text, size}, &doc, NULL, NULL))) {
		if (cgn_ok(inferencepool_read(doc, &pool, &err))) {
			CGN_MUST(pool.n_ports > 0 && pool.n_ports <= INFERENCEPOOL_PORTS);
			CGN_MUST(strpbrk(cgn_buf_z(&pool.selector), " &#?\r\n") == NULL);
		}
		if (inferencepool_pod_read(doc, &pod))
			CGN_MUST(pod.name[0] != '\0' && strchr(pod.name, '/') == NULL);
	}
	cgn_buf_fini(&pool.selector);
	free(text);
	return 0;
}
