-- The register of MCP verbs, as call_tool() reads it: a copy of tools(), laid down by every migrate.

create table if not exists switchboard.tool_register (
    name        text    primary key,
    description text    not null,
    input       jsonb   not null,
    required    text[]  not null,
    answer      text    not null,
    annotations jsonb   not null,
    shell       jsonb   not null,
    position    integer not null
);
comment on table  switchboard.tool_register is 'A copy of switchboard.tools(), which is the source: building its rows costs more than a whole call.';
comment on column switchboard.tool_register.name is 'The verb.';
comment on column switchboard.tool_register.description is 'What an agent reads of it.';
comment on column switchboard.tool_register.input is 'Its arguments, as JSON Schema properties.';
comment on column switchboard.tool_register.required is 'The arguments that must be given.';
comment on column switchboard.tool_register.answer is 'The field that its answer has.';
comment on column switchboard.tool_register.annotations is 'MCP annotations.';
comment on column switchboard.tool_register.shell is 'What the shell adds: secret, ingest_url.';
comment on column switchboard.tool_register.position is 'Its place in tools/list.';
