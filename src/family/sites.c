/*-------------------------------------------------------------------------
 *
 * sites.c
 *	  Site sets.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "common/hashfn.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "base/compat.h"
#include "base/mip.h"
#include "family/sites.h"

static char *site_name;

void
mip_sites_init(void)
{
	DefineCustomStringVariable("mip.site_name",
							   "Name of this database as a site.",
							   "If set, mip.begin refuses a set of sites that does not contain it.",
							   &site_name, "", PGC_SUSET, 0, NULL, NULL, NULL);
}

ArrayType *
mip_sites_canonical(ArrayType *sites)
{
	Datum	   *elems;
	bool	   *nulls;
	int			n;
	char	  **names;
	Datum	   *unique;
	int			kept = 0;
	bool		named = site_name == NULL || site_name[0] == '\0';

	if (VARSIZE(sites) > MIP_SITES_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the set of sites must not be longer than %d bytes", MIP_SITES_MAX)));
	if (ARR_NDIM(sites) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the set of sites must be a one-dimensional array")));
	mip_deconstruct_text_array(sites, &elems, &nulls, &n);
	names = palloc(sizeof(char *) * (n + 1));
	unique = palloc(sizeof(Datum) * (n + 1));
	for (int i = 0; i < n; i++)
	{
		names[i] = nulls[i] ? "" : TextDatumGetCString(elems[i]);
		if (names[i][0] == '\0')
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("the name of a site must not be null or empty")));
	}
	qsort(names, n, sizeof(char *), pg_qsort_strcmp);
	for (int i = 0; i < n; i++)
	{
		if (i > 0 && strcmp(names[i], names[i - 1]) == 0)
			continue;
		unique[kept++] = CStringGetTextDatum(names[i]);
		if (!named && strcmp(names[i], site_name) == 0)
			named = true;
	}
	if (kept > 0 && !named)
		ereport(ERROR,
				(errcode(ERRCODE_MIP_NOT_USABLE),
				 errmsg("the set of sites does not name this database"),
				 errdetail("This database is site \"%s\" (mip.site_name).", site_name),
				 errhint("Check which database the coordinator is connected to.")));
	return mip_construct_text_array(unique, kept);
}

int
mip_sites_count(ArrayType *sites)
{
	return sites ? ArrayGetNItems(ARR_NDIM(sites), ARR_DIMS(sites)) : 0;
}

/* Never 0, which stands for "unknown" in the registry. */
uint64
mip_sites_hash(ArrayType *sites)
{
	uint64		hash = 0;

	if (mip_sites_count(sites) > 0)
		hash = hash_bytes_extended((unsigned char *) ARR_DATA_PTR(sites),
								   ARR_SIZE(sites) - ARR_DATA_OFFSET(sites), 0);
	return hash ? hash : 1;
}

bool
mip_sites_equal(ArrayType *a, ArrayType *b)
{
	int			na = mip_sites_count(a);

	if (na != mip_sites_count(b))
		return false;
	return na == 0 ||
		(ARR_SIZE(a) - ARR_DATA_OFFSET(a) == ARR_SIZE(b) - ARR_DATA_OFFSET(b) &&
		 memcmp(ARR_DATA_PTR(a), ARR_DATA_PTR(b), ARR_SIZE(a) - ARR_DATA_OFFSET(a)) == 0);
}

/* ---- declared by active instances ---- */

static void *place;				/* in shared memory: the beginning of the area */
static dsa_area *area;			/* this backend's access to it */
static dsa_pointer mine = InvalidDsaPointer;

/* Called where shared memory is made, and not used. */
void
mip_declared_shmem_startup(int tranche)
{
	bool		found;
	dsa_area   *made;

	Assert(LWLockHeldByMeInMode(AddinShmemInitLock, LW_EXCLUSIVE));
	place = ShmemInitStruct("pg_mip sites", MIP_DECLARED_SIZE, &found);
	if (found)
		return;
	made = dsa_create_in_place(place, MIP_DECLARED_SIZE, tranche, NULL);
	dsa_pin(made);
	dsa_detach(made);
}

static dsa_area *
attached(void)
{
	MemoryContext old;

	if (area == NULL)
	{
		old = MemoryContextSwitchTo(TopMemoryContext);
		area = dsa_attach_in_place(place, NULL);
		MemoryContextSwitchTo(old);
		dsa_pin_mapping(area);
		on_shmem_exit(dsa_on_shmem_exit_release_in_place, PointerGetDatum(place));
	}
	return area;
}

dsa_pointer
mip_declare_sites(const ArrayType *sites)
{
	Assert(!DsaPointerIsValid(mine));
	mine = dsa_allocate(attached(), VARSIZE(sites));
	memcpy(dsa_get_address(area, mine), sites, VARSIZE(sites));
	return mine;
}

/* For nobody can find it any more. */
void
mip_withdraw_sites(void)
{
	dsa_pointer declared = mine;

	mine = InvalidDsaPointer;
	if (DsaPointerIsValid(declared))
		dsa_free(area, declared);
}

ArrayType *
mip_declared_sites(dsa_pointer declared)
{
	if (!DsaPointerIsValid(declared))
		return NULL;
	return DatumGetArrayTypePCopy(PointerGetDatum(dsa_get_address(attached(), declared)));
}
