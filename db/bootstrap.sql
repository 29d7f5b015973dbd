-- Roles and schemas: what must exist before anything else, and what only a login that may create
-- roles can make. `switchboard migrate` runs this with its own login, or, where that login may not,
-- prints it for a DBA to run, with the login's name in the setting switchboard.migrator.
-- Re-runnable: it changes only what differs. Needs: superuser, or CREATEROLE and CREATE on the
-- database (from PostgreSQL 16 on also the admin option on roles that another login has made).
-- Roles are shared by all databases of a cluster and are groups without login: logins are made by
-- whoever runs the database and become members.
do $bootstrap$
declare
    v_migrator constant text := coalesce(nullif(current_setting('switchboard.migrator', true), ''), current_user);
    -- May become a role: a privilege of its own since PostgreSQL 16, part of membership before.
    v_become   constant text := case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end;
    v_roles    constant text[][] := array[
        ['switchboard_owner',    'Owns everything of Switchboard; nobody logs in as it.'],
        ['switchboard_app',      'The gateway: may act for every endpoint.'],
        ['switchboard_operator', 'People and scripts that run Switchboard: the operator functions.'],
        ['switchboard_worker',   'Workers: each login of it is bound to one endpoint.'],
        ['switchboard_readonly', 'Reports and dashboards: looks, changes nothing.'],
        ['switchboard_cron',     'Schedulers: may call tick().']];
    v_schemas  constant text[][] := array[
        ['switchboard',            'Switchboard: a durable work queue for AI agents. Call its functions; its tables are private.'],
        ['switchboard_migrations', 'Which migrations and function files Switchboard has applied.']];
    v_pair  text[];
    v_login text;
    v_owner text;
begin
    foreach v_pair slice 1 in array v_roles loop
        if not exists (select from pg_catalog.pg_roles where rolname = v_pair[1]) then
            execute format('create role %I nologin', v_pair[1]);
            execute format('comment on role %I is %L', v_pair[1], v_pair[2]);
        elsif exists (select from pg_catalog.pg_roles where rolname = v_pair[1] and (rolcanlogin or rolsuper or rolcreaterole or rolcreatedb)) then
            raise exception 'role % exists and is not a plain group', v_pair[1]
                using hint = format('alter role %I nologin nosuperuser nocreaterole nocreatedb;', v_pair[1]);
        end if;
    end loop;

    foreach v_login in array array[current_user::text, v_migrator] loop
        if not pg_has_role(v_login, 'switchboard_owner', v_become) then
            execute format('grant switchboard_owner to %I', v_login);
        end if;
    end loop;

    foreach v_pair slice 1 in array v_schemas loop
        select pg_get_userbyid(nspowner) into v_owner from pg_catalog.pg_namespace where nspname = v_pair[1];
        if not found then
            execute format('create schema %I authorization switchboard_owner', v_pair[1]);
            execute format('comment on schema %I is %L', v_pair[1], v_pair[2]);
        elsif v_owner <> 'switchboard_owner' then
            raise exception 'schema % exists and belongs to %, not to switchboard_owner', v_pair[1], v_owner
                using hint = 'use another database, or give the schema to switchboard_owner';
        end if;
    end loop;
end
$bootstrap$;
