/*-------------------------------------------------------------------------
 *
 * known.h
 *	  What has been found out about tables, for as long as it is so.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_KNOWN_H
#define MIP_KNOWN_H

#include "postgres_ext.h"

typedef struct MipKnownTable
{
	Oid			relid;
	bool		answer;
	bool		by_others;		/* it goes by other relations, too */
} MipKnownTable;

typedef struct MipKnownTables MipKnownTables;

/* In this process, and as long as it runs. */
extern MipKnownTables *mip_known_create(const char *name);

/* NULL: it is to be found out. It is so until messages of the cache are looked at next. */
extern const MipKnownTable *mip_known_find(const MipKnownTables *tables, Oid relid);

/* How often something has been forgotten: to be asked before it is found out. */
extern uint64 mip_known_changes(const MipKnownTables *tables);

/* Is not remembered where something has been forgotten since there were so many changes. */
extern void mip_known_remember(MipKnownTables *tables, const MipKnownTable *table, uint64 changes);

extern void mip_known_forget_all(MipKnownTables *tables);

#endif							/* MIP_KNOWN_H */
