/* SPDX-License-Identifier: Apache-2.0 */
/* contents: what is in the blocks of one sequence, for listeners that must describe them. The model itself
 * looks at hashes alone. Pure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"
#include "base/digest/digest.h"

/* cache_salt of a request, shared by the blocks that begin its prompts. Counted by one thread. */
#define EM_SALT_MAX 1024
struct em_salt {
	uint32_t refs;
	uint32_t n;
	char text[];
};
struct em_salt *em_salt_ref(struct em_salt *s); /* NULL-safe */
void em_salt_unref(struct em_salt **take);
static inline struct cgn_str em_salt_str(const struct em_salt *s) /* empty for NULL */
{
	return s != NULL ? (struct cgn_str){s->text, s->n} : (struct cgn_str){0};
}

/* Where a picture is in a prompt. */
struct em_image {
	uint64_t hash, at; /* of its source; its first token */
};
/* What is in the full blocks of one sequence, for those who are told about them: owned arrays. 4 *
 * block_tokens + 40 bytes a block. */
struct em_contents {
	uint32_t *tokens; /* block after block */
	/* of the prefix that ends with each block, in the product's chain (base/digest), short form */
	uint64_t *digests;
	struct digest *names; /* the same in full */
	struct em_image *images;
	uint32_t n_images, cap_images;
	uint32_t model;       /* index into the served models */
	struct em_salt *salt; /* NULL: none */
};
void em_contents_free(struct em_contents **take);
