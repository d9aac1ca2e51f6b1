# SPDX-License-Identifier: Apache-2.0
# Compiles files into a program, so that the page of a run and Python workers need neither an install folder nor the internet.

# tandem_embed(module header folder...)   every file of the folders becomes an entry of tandem::MODULE::assets() of the header
function(tandem_embed module header)
  set(target tandem_${module})
  set(files)
  foreach(folder ${ARGN})
    file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.html ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.css
         ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.js ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.svg
         ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.yaml ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.py)
    list(APPEND files ${found})
  endforeach()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${target}_assets.cpp)
  add_custom_command(OUTPUT ${generated} DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
                     COMMAND ${CMAKE_COMMAND} "-DFILES=${files}" -DOUT=${generated} -DMODULE=${module}
                             -DHEADER=${header} -P ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake VERBATIM)
  target_sources(${target} PRIVATE ${generated})
endfunction()
