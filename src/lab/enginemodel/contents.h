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
#define ENGINEMODEL_SALT_MAX 1024
struct enginemodel_salt {
	uint32_t refs;
	uint32_t n;
	char text[];
};
struct enginemodel_salt *enginemodel_salt_ref(struct enginemodel_salt *s); /* NULL-safe */
void enginemodel_salt_unref(struct enginemodel_salt **take);
static inline struct cgn_str enginemodel_salt_str(const struct enginemodel_salt *s) /* empty for NULL */
{
	return s != NULL ? (struct cgn_str){s->text, s->n} : (struct cgn_str){0};
}

/* Where a picture is in a prompt. */
struct enginemodel_image {
	uint64_t hash, at; /* of its source; its first token */
};
/* What is in the full blocks of one sequence, for those who are told about them: owned arrays. 4 *
 * block_tokens + 40 bytes a block. */
struct enginemodel_contents {
	uint32_t *tokens; /* block after block */
	/* of the prefix that ends with each block, in the product's chain (base/digest), short form */
	uint64_t *digests;
	struct digest *names; /* the same in full */
	struct enginemodel_image *images;
	uint32_t n_images, cap_images;
	uint32_t model;                /* index into the served models */
	struct enginemodel_salt *salt; /* NULL: none */
};
void enginemodel_contents_free(struct enginemodel_contents **take);
