/*-------------------------------------------------------------------------
 *
 * catalog.h
 *	  Where the relations of the schema mip are.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_CATALOG_H
#define MIP_CATALOG_H

typedef enum MiptRelation
{
	MIPT_TABLE,
	MIPT_PKEY,
	MIPT_TIMELESS,
	MIPT_LINKED,
	MIPT_HORIZON,
	MIP_APPLIED,
	MIP_APPLIED_PKEY,
	MIP_LOG,
	MIP_MEMBERS,
	MIPT_RELATIONS
} MiptRelation;

/* A relation of the schema mip; an error if it is not there. */
extern Oid	mipt_relid(MiptRelation which);

/* Without the extension a schema `mip` is somebody else's, who may mean harm. */
extern bool mipt_exists(void);

#endif							/* MIP_CATALOG_H */
